"""Nothing grows: thousands of requests and aborts leave every table empty and resident memory where it was.

Cases: MG-01, MG-02, MG-03. Memory is measured in a process of its own, which nothing else disturbs: what is resident
and private, and what of it was swapped out.
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from litspec.engine.engine import Engine
from litspec.engine.request import Request
from litspec.model.window import Shapes
from tests.engine.support import TINY, ask, assert_idle, make_engine, tiny_model

STATUS = Path("/proc/self/status")
CONTEXT = 1024
SHAPES = Shapes((1, 4, 8), (1, 2, 4), (8, 32))
MOST_GROWTH = 5_000_000
KINDS = ("none", "ngram", "model", "self", "early-exit:1")


def resident_bytes() -> int:
    """Return the process's private memory, in RAM and in swap."""
    gc.collect()
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return sum(int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


def live_tensors() -> int:
    gc.collect()
    return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())


def engine_of(draft: str) -> Engine:
    models = {"model": tiny_model(n_layer=2, block_size=CONTEXT), "self": tiny_model(block_size=CONTEXT)}
    return make_engine(
        tiny_model(block_size=CONTEXT), draft=models.get(draft, draft), num_draft_tokens=3, slots=8, shapes=SHAPES
    )


def prompt_of(number: int) -> list[int]:
    """Return a prompt that no other number has."""
    chance = random.Random(number)
    distinct = [number % TINY.vocab_size, number // TINY.vocab_size % TINY.vocab_size]
    return [*distinct, *chance.choices(range(TINY.vocab_size), k=chance.randint(0, 20))]


def many_requests(engine: Engine, first: int, count: int) -> None:
    """Run distinct requests that end with their first token, by their limit or by the token itself."""
    for start in range(first, first + count, 20):
        requests = []
        for number in range(start, start + 20):
            any_token = range(TINY.vocab_size)
            kind = ({"max_new_tokens": 1}, {"eos": any_token}, {"stop_token_ids": tuple(any_token)})[number % 3]
            requests.append(ask(f"{number}", prompt_of(number), **kind))
        engine.generate(requests)


def many_tokens(engine: Engine, first: int, count: int) -> None:
    """Run distinct requests that emit 500 tokens each, half of them sampled."""
    for number in range(first, first + count):
        request = ask(f"{number}", prompt_of(number), max_new_tokens=500, temperature=number % 2, logprobs=1)
        engine.add_request(request)
    while engine.has_active_requests():
        engine.step()


def many_aborts(engine: Engine, first: int, count: int) -> None:
    """Abort requests that wait, read, write or have just ended, some of them twice, and some that never were."""
    chance = random.Random(first)
    for start in range(first, first + count, 10):
        names = [f"{number}" for number in range(start, start + 10)]
        for number, name in enumerate(names, start=start):
            engine.add_request(ask(name, prompt_of(number), max_new_tokens=chance.choice((1, 4, 200))))
        while engine.has_active_requests():
            engine.step()
            for name in chance.sample(names, k=3):
                was_there = engine.scheduler.find(name) is not None
                assert (engine.abort(name) is not None) == was_there
                assert engine.abort(name) is None
            assert engine.abort("unknown") is None


@dataclass
class Growth:
    """What was more after the work than before it, and what was done."""

    num_bytes: int
    num_tensors: int
    num_requests: int
    finished: dict[str, int]
    generated_tokens: int


WORK = {"requests": many_requests, "aborts": many_aborts, "tokens": many_tokens}


def measure(work: dict[str, int], kinds: Sequence[str]) -> Growth:
    """Do a little of the work with an engine of each kind, then all of it, and return what grew."""
    engines = [engine_of(kind) for kind in kinds]
    for engine in engines:
        for name, count in work.items():
            WORK[name](engine, 0, max(20, count // 10))
    before = [engine.stats.generated_tokens for engine in engines]
    ended = [Counter(engine.stats.finished) for engine in engines]
    num_bytes, num_tensors = resident_bytes(), live_tensors()
    for engine in engines:
        for name, count in work.items():
            WORK[name](engine, 10_000, count)
        assert_idle(engine)
    finished = sum((Counter(e.stats.finished) - old for e, old in zip(engines, ended, strict=True)), Counter())
    return Growth(
        num_bytes=resident_bytes() - num_bytes,
        num_tensors=live_tensors() - num_tensors,
        num_requests=sum(isinstance(thing, Request) for thing in gc.get_objects()),
        finished=dict(finished),
        generated_tokens=sum(e.stats.generated_tokens - old for e, old in zip(engines, before, strict=True)),
    )


def measure_alone(work: dict[str, int], kinds: Sequence[str]) -> Growth:
    """Return what `measure` finds in a fresh process."""
    script = f"""
import dataclasses, json
from tests.engine.test_memory import measure
print(json.dumps(dataclasses.asdict(measure({work!r}, {kinds!r}))))
"""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    growth = Growth(**json.loads(done.stdout.splitlines()[-1]))
    print(growth)
    return growth


needs_proc = pytest.mark.skipif(not STATUS.exists(), reason="resident memory is read from /proc")


@needs_proc
def test_MG_02_MG_03_3000_short_requests_and_1000_aborts_leave_nothing():
    growth = measure_alone({"requests": 3000 // len(KINDS), "aborts": 1000 // len(KINDS)}, KINDS)
    assert sum(growth.finished.values()) == 4000
    assert growth.finished["abort"] > 400
    assert growth.num_requests == 0
    assert growth.num_tensors == 0
    assert growth.num_bytes < MOST_GROWTH


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_MG_01_50000_tokens_over_100_requests_leave_nothing(draft):
    growth = measure_alone({"tokens": 100}, [draft])
    assert growth.generated_tokens == 50_000
    assert growth.num_requests == 0
    assert growth.num_tensors == 0
    assert growth.num_bytes < MOST_GROWTH
