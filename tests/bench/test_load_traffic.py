"""What is asked and when: seeded, the same for every arm, kept in flight or sent when due.

No test looks at how long anything took: runs are driven by a clock that a test moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from litspec.bench.drive import Load, Run, Timeline, drive
from litspec.bench.traffic import Arrivals, Closed, Level, Open, Question, plan_levels, plan_questions
from litspec.bench.workload import AUTO, read_workload
from litspec.engine.emission import Emission
from litspec.engine.params import SamplingParams
from litspec.engine.request import Request
from tests.bench.load_support import small_llm, tiny_workload


@pytest.fixture
def llm() -> Any:
    return small_llm()


class ManualClock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def now(self) -> float:
        return self.time_s


class ScriptedEngine:
    """Gives each request two tokens a step until it has `num_tokens`; a step takes `step_s`."""

    def __init__(
        self, clock: ManualClock, *, num_tokens: Callable[[int], int] = lambda _: 4, step_s: float = 1.0
    ) -> None:
        self.clock = clock
        self.step_s = step_s
        self.num_tokens = num_tokens
        self.active: dict[str, Request] = {}
        self.widths: list[int] = []
        self.fails = False

    def add_request(self, request: Request) -> None:
        self.active[request.id] = request

    def abort(self, request_id: str) -> Emission | None:
        del self.active[request_id]
        return None

    def step(self) -> list[Emission]:
        self.clock.time_s += self.step_s
        self.widths.append(len(self.active))
        emissions = []
        for request in list(self.active.values()):
            request.tokens += [7, 7]
            is_last = request.num_emitted >= self.num_tokens(int(request.id))
            if is_last:
                request.finish_reason = "error" if self.fails else "length"
                del self.active[request.id]
            emissions.append(Emission(request, [7, 7], "", request.completion() if is_last else None))
        return emissions


def request_of(index: int) -> Request:
    return Request(str(index), [1, 2], SamplingParams(seed=0))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def drive_one(engine: ScriptedEngine, num_requests: int, arrivals: Arrivals) -> Run:
    (run,) = drive([Load(engine, request_of, num_requests, arrivals, now=engine.clock.now)])
    return run


class TestDrive:
    def test_closed_loop_keeps_so_many_in_flight(self, clock):
        lengths = [2, 8, 4, 6, 2, 10, 4]
        engine = ScriptedEngine(clock, num_tokens=lambda index: lengths[index])
        run = drive_one(engine, len(lengths), Closed(3))
        waiting = engine.widths.index(2) if 2 in engine.widths else len(engine.widths)
        assert set(engine.widths[:waiting]) == {3}, "a row stayed empty while requests were left"
        assert sum(engine.widths) == sum(lengths) / 2
        assert engine.widths[waiting:] == sorted(engine.widths[waiting:], reverse=True)
        assert run.mean_in_flight == pytest.approx(sum(engine.widths) / len(engine.widths))
        assert [c.completion_tokens for c in run.completions] == lengths
        assert run.tokens_per_s == pytest.approx(sum(lengths) / len(engine.widths))

    def test_steps_that_read_no_prompt_are_counted_apart(self, clock):
        # The second request joins after two of the first one's four steps; its own first token comes a step later.
        engine = ScriptedEngine(clock, num_tokens=lambda index: 8 if index == 0 else 4)
        run = drive_one(engine, 2, Open([0.0, 1.5]))
        assert engine.widths == [1, 1, 2, 2]
        assert (run.decode_s, run.decode_tokens, run.decode_tokens_per_s) == (2.0, 6, 3.0)

    def test_open_loop_sends_when_due_and_counts_the_wait(self, clock):
        engine = ScriptedEngine(clock)
        run = drive_one(engine, 3, Open([0.0, 0.5, 6.0]))
        # The second is due in the middle of the first step, and is sent after it; then nothing runs until the third.
        assert engine.widths == [1, 2, 1, 1, 1]
        assert [t.due_s for t in run.timelines] == [0.0, 0.5, 6.0]
        assert [t.ttft_s for t in run.timelines] == [1.0, 1.5, 1.0]
        assert run.seconds == 8.0
        assert clock.time_s == 105.0, "nobody waits until the third is due"
        assert run.mean_in_flight == pytest.approx(6 / 8)

    def test_loads_run_side_by_side_each_in_its_own_time(self, clock):
        lengths = (lambda index: 4 + 2 * index, lambda index: 12 - 4 * index)
        alone = [
            drive_one(ScriptedEngine(ManualClock(), num_tokens=of, step_s=s), 3, Closed(2))
            for of, s in zip(lengths, (1.0, 0.25), strict=True)
        ]
        engines = [ScriptedEngine(clock, num_tokens=of, step_s=s) for of, s in zip(lengths, (1.0, 0.25), strict=True)]
        together = drive([Load(engine, request_of, 3, Closed(2), now=clock.now) for engine in engines])
        for run, other in zip(alone, together, strict=True):
            assert (run.seconds, run.mean_in_flight, run.decode_s) == (
                other.seconds,
                other.mean_in_flight,
                other.decode_s,
            )
            assert [t.times_s for t in run.timelines] == [t.times_s for t in other.timelines]

    def test_the_one_that_had_the_least_time_is_next(self, clock):
        order: list[str] = []

        class Noted(ScriptedEngine):
            def step(self) -> list[Emission]:
                order.append("slow" if self.step_s == 1.0 else "fast")
                return super().step()

        engines = [Noted(clock, num_tokens=lambda _: 8, step_s=s) for s in (1.0, 0.5)]
        drive([Load(engine, request_of, 1, Closed(1), now=clock.now) for engine in engines])
        assert order == ["slow", "fast", "fast", "slow", "fast", "fast", "slow", "slow"]

    def test_whatever_happens_the_engines_are_left_idle(self, clock):
        engines = [ScriptedEngine(clock, num_tokens=lambda index: 4 if index == 0 else 8) for _ in range(2)]
        engines[1].fails = True
        with pytest.raises(RuntimeError, match="request 0 was not answered: error"):
            drive([Load(engine, request_of, 5, Closed(2), now=clock.now) for engine in engines])
        assert [engine.active for engine in engines] == [{}, {}]

    def test_ctrl_c_leaves_the_engine_idle(self, clock):
        engine = ScriptedEngine(clock)
        engine.step = lambda: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            drive_one(engine, 5, Closed(2))
        assert engine.active == {}

    def test_timeline(self):
        timeline = Timeline(10.0, times_s=[12.0, 13.0, 16.0], counts=[1, 2, 2])
        assert (timeline.ttft_s, timeline.tpot_s, timeline.longest_gap_s) == (2.0, 1.0, 3.0)
        assert Timeline(10.0, [12.0], [1]).tpot_s is None
        assert Timeline(10.0, [12.0], [1]).longest_gap_s is None
        assert Timeline(10.0).ttft_s is None


class TestTraffic:
    def test_poisson_is_seeded(self):
        first = Open.poisson(2.0, 400, seed=5)
        assert first == Open.poisson(2.0, 400, seed=5)
        assert first != Open.poisson(2.0, 400, seed=6)
        assert first != Open.poisson(2.1, 400, seed=5)
        offsets = list(first.offsets_s)
        assert offsets[0] == 0.0
        assert offsets == sorted(offsets)
        assert 400 / offsets[-1] == pytest.approx(2.0, rel=0.25)  # five standard deviations

    def test_levels(self, tmp_path):
        workload = tiny_workload(tmp_path, concurrency=(1, 3), least_requests=2)
        levels = plan_levels(replace(workload, requests_per_stream=4))
        assert [(level.kind, level.value, level.num_requests) for level in levels] == [
            ("closed", 1, 4),
            ("closed", 3, 12),
            ("open", 500, 3),
        ]
        assert [level.num_requests for level in plan_levels(workload)] == [2, 3, 3]

    def test_questions_are_seeded_and_the_first_of_more(self, tmp_path, llm):
        workload = tiny_workload(tmp_path)
        questions = plan_questions(llm, workload, 12)
        assert questions[:5] == plan_questions(llm, workload, 5)
        assert questions != plan_questions(llm, replace(workload, seed=1), 12)
        assert {len(q.prompt_ids) for q in questions} <= set(range(3, 10))
        assert {q.max_new_tokens for q in questions} <= {4, 5, 6}
        assert [q.temperature for q in questions] == [0.0, 0.8] * 6
        assert len({q.seed for q in questions}) == 12

    def test_arms_ask_the_same(self):
        question = Question([1], 5, 0.8, 3)
        off, three, auto = (question.params(arm) for arm in (0, 3, AUTO))
        assert [p.num_draft_tokens for p in (off, three, auto)] == [0, 3, None]
        assert off == auto.model_copy(update={"num_draft_tokens": 0})
        assert {"top_k", "top_p", "min_p", "repetition_penalty", "temperature", "seed"} <= off.model_fields_set

    def test_builtin_prompts_need_a_chat_template(self, llm):
        with pytest.raises(ValueError, match="chat template; in a workload file take `prompts: random`"):
            plan_questions(llm, read_workload(), 1)

    def test_random_prompts_must_fit_the_context(self, tmp_path, llm):
        workload = tiny_workload(tmp_path, prompt_tokens=(1, 255))
        assert plan_questions(llm, workload, 1)
        with pytest.raises(ValueError, match="prompt_tokens went up to 256; allowed: up to 255"):
            plan_questions(llm, replace(workload, prompt_tokens=(1, 256)), 1)


def test_level_names():
    assert Level("closed", 4, 4, Closed(4)).name == "4 in flight"
    assert Level("open", 0.5, 4, Open([0.0])).name == "0.5 per s"
