"""The embedded model, whole and real: speculation, batching and compiling never show in its tokens (float32).

Its weights are read once; the variants are engines around the same target.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import pytest
import torch

from litspec import LLM, Completion, SamplingParams
from litspec.api.config import EngineConfig
from litspec.api.loading import OpenedModel, open_model
from litspec.draft import EarlyExitProposer, NgramProposer
from litspec.engine.engine import Engine
from litspec.model.compile import CompiledGPT, CompileMode
from litspec.model.gpt import GPT
from litspec.model.window import Shapes
from tests.tie_rule import TieRule

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(900)]

NAME = "smollm2-135m-instruct"
COPIED = "The blue heron stood on the old pier at dawn, and the blue heron did not move until the tide came in."
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
PROMPTS = [
    CAPITAL,
    [{"role": "user", "content": f"Repeat this text exactly, twice: {COPIED}"}],
    "Once upon a time",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "1, 2, 3, 4, 5, 6, 7, 8,",
    [{"role": "user", "content": "Write one sentence about rain, then one about řeka, 바다 and 🦊."}],
]
MORE_PROMPTS = [
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    [{"role": "user", "content": "List five colours."}],
    "Q: What is 12 + 30?\nA:",
    "import os\nimport sys\n\n\ndef main() -> None:\n",
    "<p>one</p>\n<p>two</p>\n<p>three</p>\n",
    [{"role": "user", "content": "Explain in two sentences why the sky is blue."}],
    "a",
    "In 1969, Apollo 11 " * 12,
]
GREEDY = [SamplingParams(temperature=0.0, max_new_tokens=40)] * len(PROMPTS)
SAMPLED = [
    SamplingParams(temperature=0.7, seed=1, max_new_tokens=24),
    SamplingParams(temperature=1.0, seed=2, top_k=40, max_new_tokens=24),
    SamplingParams(temperature=0.9, seed=3, top_p=0.9, max_new_tokens=24),
    SamplingParams(temperature=0.3, seed=4, max_new_tokens=24),
    SamplingParams(temperature=0.8, seed=5, top_k=20, top_p=0.8, max_new_tokens=24),
    SamplingParams(temperature=0.0, max_new_tokens=24),
]


@pytest.fixture(scope="module", autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def opened() -> OpenedModel:
    return open_model(NAME)


@pytest.fixture(scope="module")
def gpt(opened, two_threads) -> GPT:
    gpt = GPT(opened.config, max_seq_length=512)
    assert opened.checkpoint is not None
    gpt.load(opened.checkpoint.packed_tensors())  # as it is served
    return gpt


@pytest.fixture(scope="module")
def compiled(gpt) -> dict[CompileMode, CompiledGPT]:
    """Return the one target, in both modes; a shape is traced when it is first met."""
    return {"none": CompiledGPT(gpt, "none"), "thunder": CompiledGPT(gpt, "thunder")}


@pytest.fixture(scope="module")
def ties(gpt) -> Iterator[TieRule]:
    rule = TieRule(gpt)
    yield rule
    rule.assert_no_ties()


@pytest.fixture(scope="module")
def load(opened, compiled):
    """Return a function that makes an LLM of a draft and so on, around the one target."""

    def load(draft: str = "none", *, G: int = 4, mode: CompileMode = "none", rows: int = len(PROMPTS)) -> LLM:
        target = compiled[mode]
        cache = target.new_cache(rows)
        options = EngineConfig(draft=draft, num_draft_tokens=G, max_batch_size=rows, compile=mode, dtype="float32")
        G = 0 if draft == "none" else G
        shapes = Shapes.plan(max_batch_size=rows, num_draft_tokens=G)
        proposer = NgramProposer() if draft == "ngram" else None
        if options.early_exit_layers is not None:
            proposer = EarlyExitProposer(target, cache, num_layers=options.early_exit_layers, shapes=shapes)
        return LLM(opened, Engine(target, cache, shapes=shapes, proposer=proposer, num_draft_tokens=G), options)

    return load


def ids_of(llm: LLM, prompts: Sequence) -> list[list[int]]:
    return [llm.prepare(prompt, SamplingParams()).prompt_ids for prompt in prompts]


@pytest.fixture(scope="module")
def prompts(load) -> list[list[int]]:
    ids = ids_of(load(), PROMPTS)
    assert len({len(each) for each in ids}) == len(ids), "of unequal length"
    return ids


@pytest.fixture(scope="module")
def greedy(load, prompts) -> list[Completion]:
    return load().generate(prompts, GREEDY)


@pytest.fixture(scope="module")
def sampled(load, prompts) -> list[Completion]:
    return load().generate(prompts, SAMPLED)


def test_capital_of_france(greedy, prompts, load):
    assert "Paris" in greedy[0].text
    assert greedy[0].finish_reason == "stop"
    assert load().chat(CAPITAL, temperature=0.0, max_new_tokens=4).token_ids == greedy[0].token_ids[:4]
    assert [c.completion_tokens for c in greedy].count(40) >= 3, "they are long enough to compare"


@pytest.mark.parametrize("G", [1, 2, 4, 8])
def test_ngram_draft_never_shows(load, prompts, greedy, ties, G):
    found = load("ngram", G=G).generate(prompts, GREEDY)
    ties.assert_same(prompts, GREEDY, greedy, found)
    assert sum(c.stats.accepted for c in found) > 10
    if G >= 2:
        assert found[1].stats.acceptance_length > 1.5, "it repeats a text"
    print(f"G={G}:", [round(c.stats.acceptance_length, 2) for c in found])


@pytest.mark.parametrize(
    ("draft", "G"),
    [
        ("early-exit:12", 2),
        pytest.param("early-exit:1", 4, marks=pytest.mark.slow),
        pytest.param("early-exit:25", 8, marks=pytest.mark.slow),
    ],
)
def test_early_exit_draft_never_shows(load, prompts, greedy, ties, draft, G):
    some, params = prompts[2:], GREEDY[2:]
    found = load(draft, G=G).generate(some, params)
    ties.assert_same(some, params, greedy[2:], found)
    assert sum(c.stats.drafted for c in found) > 100


def test_all_layers_as_draft_are_always_right(load, prompts, greedy, ties):
    some, params = prompts[3:5], GREEDY[3:5]
    found = load("early-exit:30", G=3).generate(some, params)
    ties.assert_same(some, params, greedy[3:5], found)
    for completion in found:
        stats = completion.stats
        assert stats.drafted > 20
        assert stats.accepted >= stats.drafted - 3, "a rejection is a tie, or the text's end"


@pytest.mark.parametrize(("draft", "G"), [("none", 0), ("ngram", 4)])
def test_compiling_never_shows(load, prompts, greedy, ties, compiled, draft, G):
    found = load(draft, G=max(G, 1), mode="thunder").generate(prompts[:4], GREEDY[:4])
    ties.assert_same(prompts[:4], GREEDY[:4], greedy[:4], found)
    assert compiled["thunder"].num_shapes > 0


@pytest.mark.parametrize(
    ("draft", "G", "mode"),
    [
        ("ngram", 4, "none"),
        ("early-exit:8", 2, "none"),
        pytest.param("ngram", 1, "thunder", marks=pytest.mark.slow),
        pytest.param("ngram", 8, "none", marks=pytest.mark.slow),
        pytest.param("early-exit:20", 4, "none", marks=pytest.mark.slow),
    ],
)
def test_draft_never_shows_in_sampled_text(load, prompts, sampled, ties, draft, G, mode):
    count = 3 if draft == "early-exit:8" else len(prompts)
    found = load(draft, G=G, mode=mode).generate(prompts[:count], SAMPLED[:count])
    ties.assert_same(prompts[:count], SAMPLED[:count], sampled[:count], found)
    assert sum(c.stats.drafted for c in found) > 5
    assert [c.seed for c in found[:3]] == [1, 2, 3]


def test_batch_mates_never_show(load, prompts, greedy, sampled, ties):
    solo = load(rows=1)
    chosen = [1, 3]
    found = [solo.generate(prompts[i], GREEDY[i].model_copy(update={"max_new_tokens": 20})) for i in chosen]
    for i, completion in zip(chosen, found, strict=True):
        assert completion.stats.batch_rows == 1
        cut = Completion(**{**vars(greedy[i]), "token_ids": greedy[i].token_ids[:20], "text": completion.text})
        ties.assert_same([prompts[i]], [GREEDY[i]], [cut], [completion])
    drafting = load("ngram", rows=1).generate(prompts[2], SAMPLED[2])
    ties.assert_same([prompts[2]], [SAMPLED[2]], [sampled[2]], [drafting])


def test_the_rule_itself_tells_a_tie_from_a_fault(gpt, prompts, greedy):
    rule = TieRule(gpt)
    completion = greedy[2]
    with torch.inference_mode():
        best = gpt(torch.tensor([[*prompts[2], *completion.token_ids[:5]]]))[0, -1].topk(2).indices.tolist()
    assert best[0] == completion.token_ids[5]
    wrong = Completion(**{**vars(completion), "token_ids": [*completion.token_ids[:5], best[1]]})
    with pytest.raises(AssertionError, match="differs at a gap of"):
        rule.assert_same([prompts[2]], [GREEDY[2]], [completion], [wrong])
    short = Completion(**{**vars(completion), "token_ids": completion.token_ids[:5]})
    with pytest.raises(AssertionError, match="one run stopped where the other went on"):
        rule.assert_same([prompts[2]], [GREEDY[2]], [completion], [short])
    tokens, params = [*prompts[2]], SAMPLED[4]
    drawn = gap_free_token(rule, gpt, tokens, params)
    assert rule.gap(tokens, params, drawn, drawn) == 0.0
    others = [other for other in range(1000) if other != drawn]
    assert all(rule.gap(tokens, params, drawn, other) > 1e-3 for other in others[:: len(others) // 5])


def gap_free_token(rule: TieRule, gpt: GPT, tokens: list[int], params: SamplingParams) -> int:
    """Return the token that the sampler draws here."""
    from litspec.model.decode import Sampling, batched_sample

    assert params.seed is not None
    sampling = Sampling.of([params.temperature], [params.top_k], [params.top_p], [params.seed])
    with torch.inference_mode():
        logits = gpt(torch.tensor([tokens]))[:, -1:]
    return int(batched_sample(logits, torch.tensor([[len(tokens)]]), sampling))


@pytest.mark.slow
@pytest.mark.parametrize(("draft", "G"), [("ngram", 3), ("ngram", 6), ("early-exit:10", 3)])
def test_more_prompts(load, ties, draft, G):
    llm = load(rows=4)
    ids = ids_of(llm, MORE_PROMPTS)
    params = [
        SamplingParams(temperature=0.0, max_new_tokens=64)
        if i % 2
        else SamplingParams(temperature=0.8, top_p=0.95, seed=i, max_new_tokens=64)
        for i in range(len(ids))
    ]
    expected = llm.generate(ids, params)
    ties.assert_same(ids, params, expected, load(draft, G=G, rows=3).generate(ids, params))


@pytest.mark.slow
def test_time_to_the_first_token_of_a_process_is_shown():
    command = [sys.executable, "-m", "litspec", "generate", "--model", NAME, "--prompt", "Hello"]
    started = time.monotonic()
    with subprocess.Popen([*command, "--max-new-tokens", "8"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        first_s = time.monotonic() - started
        process.stdout.read()
    print(f"`litspec generate` gave its first letter after {first_s:.1f} s")
    assert first.strip() and process.returncode == 0
