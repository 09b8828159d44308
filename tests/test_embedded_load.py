"""The embedded model under load (float32): what a request says does not depend on who else is there, or when.

Requests arrive and are aborted at random steps, share beginnings, and each is compared with itself alone; the two may
part only at a tie.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
import torch

from litspec import Completion, SamplingParams
from litspec.api.loading import OpenedModel, open_model
from litspec.draft import EarlyExitProposer, NgramProposer
from litspec.engine.costs import CostTable
from litspec.engine.engine import Engine
from litspec.engine.request import Request
from litspec.model.compile import CompiledGPT
from litspec.model.gpt import GPT
from litspec.model.window import Shapes
from tests.engine.support import assert_idle
from tests.tie_rule import TieRule

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(900)]

CONTEXT = 128
TEXTS = (
    "The blue heron stood on the old pier at dawn, and the blue heron did not move until the tide came in.",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\ndef mul(a, b):\n    return",
    "one two three one two three one two three one two three one two three",
    "In 1969, Apollo 11 landed on the Moon; řeka, 바다 and 🦊 are three words for three things.",
)
SETTINGS = (
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 40, "logprobs": 0},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.8, "num_draft_tokens": 1},
)


@pytest.fixture(scope="module")
def opened() -> OpenedModel:
    return open_model("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def target(opened) -> Iterator[CompiledGPT]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    gpt = GPT(opened.config, max_seq_length=CONTEXT)
    assert opened.checkpoint is not None
    gpt.load(opened.checkpoint.packed_tensors())  # as it is served
    yield CompiledGPT(gpt, "none")
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pool(opened) -> list[Request]:
    """Return 64 requests whose prompts are beginnings of four texts, some with an end of their own."""
    texts = [opened.tokenizer.encode(text) for text in TEXTS]
    requests = []
    for number in range(64):
        chance = random.Random(number)
        text = chance.choice(texts)
        prompt = [*text[: chance.randint(1, len(text))], *chance.sample(text, k=chance.choice((0, 0, 1, 3)))]
        setting = SETTINGS[number % len(SETTINGS)]
        params = SamplingParams(max_new_tokens=chance.randint(3, 9), seed=chance.getrandbits(63), **setting)
        requests.append(Request(f"{number}", prompt, params, opened.eos_token_ids))
    return requests


@pytest.fixture(scope="module")
def alone(target, pool):
    """Return a function that gives what a request of the pool says alone: one slot, no draft."""
    known: dict[str, Completion] = {}

    def alone(request: Request) -> Completion:
        if request.id not in known:
            engine = Engine(target, target.new_cache(1), shapes=Shapes((1,), (1,), (CONTEXT,)))
            known[request.id] = engine.generate([fresh(request)])[0]
        return known[request.id]

    return alone


def fresh(request: Request) -> Request:
    return Request(request.id, request.prompt_ids, request.params, request.eos_token_ids)


def make_engine(target: CompiledGPT, draft: str, num_draft_tokens, slots: int) -> Engine:
    cache = target.new_cache(slots)
    shapes = Shapes((1, slots // 2, slots), (1, 2, 4), (16, 32))
    proposer = NgramProposer() if draft == "ngram" else None
    if draft == "early-exit":
        proposer = EarlyExitProposer(target, cache, num_layers=8, shapes=shapes)
    engine = Engine(target, cache, shapes=shapes, proposer=proposer, num_draft_tokens=num_draft_tokens)
    engine.drafter.policy.costs = CostTable.assumed(shapes)
    return engine


def play(engine: Engine, requests: Sequence[Request]) -> tuple[dict[str, Completion], set[str]]:
    """Run requests that arrive, and are aborted, at random steps; return their completions and who was aborted."""
    chance = random.Random(len(requests))
    waiting, aborts = [fresh(request) for request in requests], dict[int, str]()
    completions: dict[str, Completion] = {}
    aborted: set[str] = set()
    for step in itertools.count():
        while waiting and chance.random() < 0.5:
            if chance.random() < 0.25:
                aborts[step + chance.randint(0, 8)] = waiting[0].id
            engine.add_request(waiting.pop(0))
        last = engine.abort(aborts.pop(step, ""))
        aborted |= set() if last is None else {last.request.id}
        for emission in [*([] if last is None else [last]), *engine.step()]:
            if emission.completion is not None:
                completions[emission.request.id] = emission.completion
        if not waiting and not engine.has_active_requests():
            return completions, aborted
    raise AssertionError


@pytest.mark.parametrize(
    ("count", "slots", "draft", "num_draft_tokens"),
    [
        (12, 4, "ngram", 3),
        pytest.param(64, 8, "ngram", "auto", marks=pytest.mark.slow),
        pytest.param(64, 8, "early-exit", 1, marks=pytest.mark.slow),
    ],
)
def test_requests_under_load_say_what_each_says_alone(target, pool, alone, count, slots, draft, num_draft_tokens):
    rule = TieRule(target.gpt)
    engine = make_engine(target, draft, num_draft_tokens, slots)
    requests = pool[:count]
    completions, aborted = play(engine, requests)
    assert_idle(engine)
    for request in requests:
        found, wanted = completions[request.id], alone(request)
        if request.id in aborted:
            assert found.finish_reason == "abort"
            num_tokens = len(found.token_ids)
            cut = {"token_ids": wanted.token_ids[:num_tokens], "finish_reason": "abort"}
            wanted = Completion(**{**vars(wanted), **cut})
        rule.assert_same([request.prompt_ids], [request.params], [wanted], [found])
        if found.token_ids == wanted.token_ids:
            for mine, theirs in zip(found.logprobs or (), wanted.logprobs or (), strict=False):
                assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)
    assert len(aborted) >= count // 16
    assert engine.stats.prefix_hits > count // 8
    assert engine.stats.num_accepted_tokens > count // 8
    print(engine.stats.occupancy, engine.stats.prefix_hits, engine.stats.acceptance_rate)
    rule.assert_no_ties()
