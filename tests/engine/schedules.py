"""Random schedules of requests, for tests of the engine under load.

A `Schedule` is a combination of options that must not show in a text: how far and with what the engine drafts, what it
reuses, which batches it feeds, how it is compiled and when it admits. `SCHEDULES` has every pair of values of any two
options somewhere. Requests come from one pool of random ones, so that what each says alone is computed once. All of it
follows from fixed seeds.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, fields, replace
from functools import cache as remember
from typing import Any, Literal, get_args, get_type_hints

from torch import Tensor

from litspec.draft import DraftCost, NgramProposer
from litspec.engine.costs import CostTable
from litspec.engine.engine import Engine
from litspec.engine.options import Batching
from litspec.engine.request import Completion, Request
from litspec.model.compile import CompiledGPT, CompileMode
from litspec.model.window import Shapes
from tests.engine.scripted import Letters
from tests.engine.support import ask, make_engine, same, tiny_gpt

CONTEXT = 128
VOCAB_SIZE = 288
"""More than the sampler's shortlist has, and more than a byte holds."""
NUM_SLOTS = 8
NUM_REQUESTS = 64
CHUNK_WIDTHS = (8, 32)
STEP_WIDTHS: dict[Any, tuple[int, ...]] = {
    1: (1, 2),
    2: (1, 3),
    4: (1, 3, 5),
    8: (1, 5, 9),
    "auto": (1, 2, 3, 5, 9),
}
STEMS = [random.Random(f"stem {i}").choices(range(VOCAB_SIZE), k=90 if i else 7) for i in range(6)]
STEMS[0] *= 13  # n-grams find their way in this one


@dataclass(frozen=True)
class Schedule:
    """One combination of options; `seed` draws which requests come, when, and which are aborted."""

    num_draft_tokens: int | Literal["auto"]
    draft: str
    prefix_reuse: bool
    row_buckets: tuple[int, ...]
    mode: CompileMode
    batching: Batching
    seed: int = 0

    def __str__(self) -> str:
        reuse = "reuse" if self.prefix_reuse else "fresh"
        buckets = ",".join(map(str, self.row_buckets))
        return f"{self.seed}-{self.draft}-{self.num_draft_tokens}-{reuse}-{buckets}-{self.mode}-{self.batching}"

    @property
    def values(self) -> tuple[tuple[str, Any], ...]:
        """(option, value) of every option."""
        return tuple((name, getattr(self, name)) for name in OPTIONS)

    @property
    def pairs(self) -> set[tuple[tuple[str, Any], ...]]:
        """Every pair of two options' values."""
        return set(itertools.combinations(self.values, 2))


OPTIONS: dict[str, tuple[Any, ...]] = {
    "num_draft_tokens": ("auto", 1, 2, 4, 8),
    "draft": ("none", "ngram", "model", "self", "early-exit:1"),
    "prefix_reuse": (True, False),
    "row_buckets": ((1, 2, 4, 8), (3, 8), (8,)),
    "mode": get_args(CompileMode),
    "batching": get_args(get_type_hints(Schedule)["batching"]),
}
assert [*OPTIONS, "seed"] == [f.name for f in fields(Schedule)]

SAMPLE = [
    Schedule("auto", "model", True, (1, 2, 4, 8), "none", "continuous"),
    Schedule(1, "ngram", True, (8,), "thunder", "continuous"),
    Schedule(2, "self", False, (3, 8), "none", "fixed"),
    Schedule(4, "early-exit:1", True, (1, 2, 4, 8), "none", "continuous"),
    Schedule(8, "none", False, (8,), "none", "continuous"),
    Schedule("auto", "ngram", True, (3, 8), "none", "fixed"),
    Schedule(4, "model", True, (3, 8), "none", "continuous"),
]
"""Schedules that have every value of every option, with few shapes to compile."""


def all_pairs() -> set[tuple[tuple[str, Any], ...]]:
    """Return every pair of values of two options."""
    values = [[(name, value) for value in column] for name, column in OPTIONS.items()]
    return {pair for a, b in itertools.combinations(values, 2) for pair in itertools.product(a, b)}


def plan(num_schedules: int) -> list[Schedule]:
    """Return SAMPLE, then what covers most of the pairs that are missing, then random combinations."""
    chance = random.Random("plan")

    def draw() -> Schedule:
        return Schedule(*(chance.choice(values) for values in OPTIONS.values()))

    planned = list(SAMPLE)
    missing = all_pairs().difference(*(schedule.pairs for schedule in planned))
    while len(planned) < num_schedules:
        best = max((draw() for _ in range(100)), key=lambda schedule: len(schedule.pairs & missing))
        if best not in planned:
            planned.append(best)
            missing -= best.pairs
    return [replace(schedule, seed=seed) for seed, schedule in enumerate(planned)]


SCHEDULES = plan(50)


class Watched(CompiledGPT):
    """A compiled model that notes the (rows, width) that it is fed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fed: set[tuple[int, ...]] = set()

    def hidden(self, idx: Tensor, *arguments: Any, **options: Any) -> Tensor:
        self.fed.add(tuple(idx.shape))
        return super().hidden(idx, *arguments, **options)


@remember
def model(mode: CompileMode, n_layer: int = 3) -> Watched:
    """Return the one model of so many layers; what is traced for a schedule is there for the next."""
    return Watched(tiny_gpt(n_layer=n_layer, vocab_size=VOCAB_SIZE, block_size=CONTEXT), mode)


def engine_of(schedule: Schedule) -> Engine:
    """Return a fresh engine with a schedule's options, warmed up where there is something to compile."""
    shapes = Shapes(schedule.row_buckets, STEP_WIDTHS[schedule.num_draft_tokens], CHUNK_WIDTHS)
    ngram = NgramProposer(min_n=1, max_n=3)  # guesses often, and is often wrong
    drafts = {"model": model(schedule.mode, 2), "self": model(schedule.mode), "ngram": ngram}
    engine = make_engine(
        model(schedule.mode),
        draft=drafts.get(schedule.draft, schedule.draft),
        num_draft_tokens=schedule.num_draft_tokens,
        slots=NUM_SLOTS,
        shapes=shapes,
        prefix_reuse=schedule.prefix_reuse,
        batching=schedule.batching,
    )
    if schedule.mode == "thunder":
        engine.warm_up()
    # Measured costs would make a run hard to repeat.
    draft = None if schedule.draft in ("none", "ngram") else DraftCost(0.2, 0.2, 0.2)
    engine.drafter.policy.costs = CostTable.assumed(shapes, draft)
    return engine


@remember
def group(index: int) -> list[Request]:
    """Return the requests of one random prompt, one for each of its choices; they are not run, copies of them are."""
    chance = random.Random(f"group {index}")
    stem = chance.choice(STEMS)[: chance.choice((0, 90, chance.randint(1, 90)))]
    tail = chance.choices(range(VOCAB_SIZE), k=chance.choice((0, 1, 2, chance.randint(1, 30))))
    prompt = [*stem, *tail][:110] or [index % VOCAB_SIZE]
    limit = chance.choice((chance.choice((1, 2)), *[chance.randint(2, 20)] * 3, chance.randint(20, 40)))
    params = _random_params(chance, limit)
    bad: list[list[int]] = []
    if chance.random() < 0.25:  # words that would be written: their tokens are likely
        a, b = chance.sample(range(VOCAB_SIZE), k=2)
        params["logit_bias"] = {a: 9.0, b: 8.0}
        bad = chance.sample([[a], [a, b], [b, a, b], [prompt[-1], a]], k=2)
    eos = chance.sample(range(VOCAB_SIZE), k=60 if params.get("ignore_eos") else 6)
    return [
        ask(f"{index}.{choice}", prompt, eos=eos, choice=choice, bad=bad, **params)
        for choice in range(params.get("n", 1))
    ]


def _random_params(chance: random.Random, limit: int) -> dict[str, Any]:
    def some(**values: Any) -> dict[str, Any]:
        """Return each of some fields with a chance of its own."""
        return {name: value for name, value in values.items() if chance.random() < 0.2}

    params: dict[str, Any] = {
        "max_new_tokens": limit,
        "seed": chance.choice((0, 2**63 - 1, *[chance.getrandbits(63)] * 6)),
    }
    if chance.random() < 0.65:
        params["temperature"] = chance.choice((1.0, 0.7, chance.uniform(0.2, 2.0)))
        params |= some(top_k=chance.choice((1, 5, 40, 270, 500)), top_p=chance.choice((0.3, 0.9, 0.999)))
        params |= some(min_p=chance.choice((0.02, 0.2, 1.0)), n=chance.choice((2, 3)))
    params |= some(
        repetition_penalty=chance.choice((0.8, 1.1, 2.0)),
        presence_penalty=chance.choice((-1.5, 0.8, 2.0)),
        frequency_penalty=chance.choice((-0.7, 0.4, 1.9)),
        logit_bias={chance.randrange(VOCAB_SIZE): chance.choice((-100.0, 2.0, 5.0, 9.0)) for _ in range(4)},
        min_tokens=chance.randint(1, limit),
        stop_token_ids=tuple(chance.sample(range(VOCAB_SIZE), k=12)),
        stop=("q", "xy", chance.choice("abcdef") + chance.choice("abcdef")),
    )
    return params | some(logprobs=chance.choice((0, 1, 20)), prompt_logprobs=chance.choice((0, 3)), ignore_eos=True)


ALONE = Watched(model("none").gpt, "none")


def fresh(request: Request) -> Request:
    """Return a copy of a pooled request, to be run; it has text where a stop string is looked for."""
    return same(request, text=Letters() if request.params.stop else None)


@remember
def alone(request_id: str) -> Completion:
    """Return what a pooled request is answered alone: one slot, no draft, no compiler, nothing reused."""
    index, choice = map(int, request_id.split("."))
    shapes = Shapes((1,), (1,), (CONTEXT,))
    engine = make_engine(ALONE, slots=1, num_draft_tokens=0, shapes=shapes, prefix_reuse=False)
    request = group(index)[choice]
    engine.add_request(fresh(request))
    while True:
        for emission in engine.step():
            if emission.completion is not None:
                return emission.completion


@dataclass
class Played:
    """What came of a schedule.

    Attributes:
        completions: every request's, by its id.
        token_ids: what its emissions brought.
        text: likewise.
        aborted: those that an abort ended.
    """

    completions: dict[str, Completion] = field(default_factory=dict)
    token_ids: dict[str, list[int]] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)


def play(schedule: Schedule, engine: Engine, *, num_groups: int, num_requests: int = NUM_REQUESTS) -> Played:
    """Run the requests of a schedule: they arrive at random steps, and some are aborted at random ones."""
    chance = random.Random(f"play {schedule.seed}")
    drawn = itertools.chain.from_iterable(group(i) for i in chance.sample(range(num_groups), k=num_groups))
    requests = list(itertools.islice(drawn, num_requests))
    arrivals: dict[int, list[Request]] = {}
    aborts: dict[int, list[str]] = {}
    step = 0
    for request in requests:
        step += chance.choice((0, 0, 0, 0, 1, 3))
        arrivals.setdefault(step, []).append(_with_own_width(chance, request, engine))
        if chance.random() < 0.25:
            aborts.setdefault(step + chance.randint(0, 15), []).append(request.id)
    played = Played(token_ids={r.id: [] for r in requests}, text={r.id: "" for r in requests})
    for step in itertools.count():
        for request in arrivals.pop(step, ()):
            engine.add_request(request)
        ended = [engine.abort(request_id) for request_id in aborts.pop(step, ())]
        played.aborted |= {emission.request.id for emission in ended if emission is not None}
        for emission in [emission for emission in ended if emission is not None] + engine.step():
            played.token_ids[emission.request.id] += emission.token_ids
            played.text[emission.request.id] += emission.text
            if emission.completion is not None:
                assert emission.request.id not in played.completions, "it ended twice"
                played.completions[emission.request.id] = emission.completion
        if not arrivals and not engine.has_active_requests():
            return played
        assert step < 5_000, "it never ends"


def _with_own_width(chance: random.Random, request: Request, engine: Engine) -> Request:
    """Return a copy of a request that sometimes says itself how far to draft."""
    request = fresh(request)
    if chance.random() < 0.2:
        widest = engine.shapes.step_widths[-1] - 1
        request.params = request.params.model_copy(update={"num_draft_tokens": chance.randint(0, widest)})
    return request
