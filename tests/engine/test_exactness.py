"""Promise 1: the draft never shows. Every text here is compared with one recomputed without cache, batch or draft.

Cases: LL-01, LL-05, LL-14, RB-01, RB-02, RB-05, RB-08, KV-09, KV-11, SP-05. KV-11 has no prefix reuse to meet yet: its
inputs are run as they are. KV-03 needs a sliding window, which no configuration that loads has. LL-05's bfloat16 half
allows a first difference only where the two best logits are within 4 ulp: in a random model of width 32 the library's
own rounding is as large as that, and gaps are small; kernels that round alike in every shape will make it 0.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from litspec.engine.request import Request
from tests.engine.support import (
    DRAFTS,
    ODD_SHAPES,
    ask,
    assert_idle,
    make_engine,
    plain,
    random_prompt,
    recompute,
    run,
    tiny_gpt,
    tiny_model,
)

LENGTHS = (1, 7, 33, 2, 60, 12, 5, 19)
LIMITS = (24, 20, 30, 9, 17, 24, 28, 1)
MIXED = (
    {},
    {"temperature": 1.0, "seed": 2**63 - 1},
    {"temperature": 0.8, "top_k": 5, "seed": 2},
    {"temperature": 1.2, "top_p": 0.9, "seed": 3},
    {"temperature": 1.0, "top_k": 40, "top_p": 0.8, "seed": 4},
    {"temperature": 2.0, "top_k": 300, "top_p": 0.5, "seed": 0},
    {"temperature": 0.3, "seed": 6},
    {"temperature": 1.0, "top_k": 1, "seed": 7},
)


def eight(kind: str) -> list[Request]:
    """Return eight ragged requests: all greedy, or each sampled in its own way."""
    params = [{}] * 8 if kind == "greedy" else MIXED
    return [
        ask(f"{kind} {i}", random_prompt(length, seed=i), max_new_tokens=limit, **params[i])
        for i, (length, limit) in enumerate(zip(LENGTHS, LIMITS, strict=True))
    ]


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
def test_the_plain_engine_equals_no_engine(kind):
    for request in eight(kind):
        assert plain(request) == recompute(request)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", ["greedy", "sampled"])
def test_eight_ragged_requests_in_one_batch_equal_the_eight_alone(kind, num_draft_tokens, draft):
    requests = eight(kind)
    engine = make_engine(draft=draft, num_draft_tokens=num_draft_tokens)
    completions = run(engine, requests)
    assert [c.token_ids for c in completions] == [recompute(request) for request in requests]
    assert [len(c.token_ids) for c in completions] == list(LIMITS)
    assert max(c.stats.batch_rows or 0 for c in completions) > 4, "they did not run together"
    if draft in ("self", "early-exit:3"):
        assert all(c.stats.acceptance_rate in (1.0, None) for c in completions)
    elif draft != "none":
        assert 0 < sum(c.stats.accepted for c in completions) < sum(c.stats.drafted for c in completions)
    assert_idle(engine)


@pytest.mark.parametrize("draft", DRAFTS)
def test_buckets_that_are_no_powers_of_two(draft):
    requests = eight("sampled")
    engine = make_engine(draft=draft, num_draft_tokens=8, shapes=ODD_SHAPES)
    assert [c.token_ids for c in run(engine, requests)] == [recompute(request) for request in requests]


@pytest.mark.parametrize("draft", ["ngram", "model", "early-exit:1"])
@pytest.mark.parametrize("slots", [2, 3])
def test_arrivals_at_different_steps_and_aborts_in_between(draft, slots):
    requests = eight("sampled")
    engine = make_engine(draft=draft, slots=slots, shapes=ODD_SHAPES)
    texts: dict[str, list[int]] = {request.id: [] for request in requests}
    waiting = list(requests)
    for step in itertools.count():
        if step % 3 == 0 and waiting:
            engine.add_request(waiting.pop(0))
            engine.add_request(ask(f"aborted {step}", random_prompt(9 + step, seed=step), temperature=1.0))
        if step % 3 == 2 or not waiting:
            for victim in range(step - step % 3, step - 12, -3):
                engine.abort(f"aborted {victim}")
        for emission in engine.step():
            if emission.request.id in texts:
                texts[emission.request.id] += emission.token_ids
        if not waiting and not engine.has_active_requests():
            break
    assert texts == {request.id: recompute(request) for request in requests}
    assert_idle(engine)


@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_SP_05_neighbours_and_order_of_arrival_do_not_change_a_seeded_text(draft):
    request = ask("seeded", random_prompt(9, seed=1), max_new_tokens=40, temperature=1.0, seed=42)
    other = ask("other", random_prompt(9, seed=1), max_new_tokens=40, temperature=1.0, seed=43)
    unseeded = [
        ask(f"u{i}", random_prompt(20, seed=i), max_new_tokens=30, temperature=1.0, seed=None) for i in range(3)
    ]
    alone = run(make_engine(draft=draft), [request])[0].token_ids
    assert alone == recompute(request)
    assert run(make_engine(draft=draft), [request, *unseeded])[0].token_ids == alone
    assert run(make_engine(draft=draft), [*unseeded, request])[-1].token_ids == alone
    assert run(make_engine(draft=draft), [other])[0].token_ids != alone


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4, 8])
@pytest.mark.parametrize("draft", ["model", "ngram"])
def test_LL_01_a_prompt_of_one_token(num_draft_tokens, draft):
    request = ask("a", [17], max_new_tokens=32)
    other_weights = tiny_model(seed=5, n_layer=2) if draft == "model" else draft
    engine = make_engine(draft=other_weights, num_draft_tokens=num_draft_tokens)
    assert run(engine, [request])[0].token_ids == recompute(request)


def tie_gap(request: Request, tokens: list[int], position: int, dtype: torch.dtype) -> tuple[float, float]:
    """Return the gap between the two best logits at an output position, and how much of it counts as a tie."""
    text = [*request.prompt_ids, *tokens[:position]]
    with torch.inference_mode():
        best = tiny_gpt(dtype=dtype)(torch.tensor([text]))[0, -1].topk(2).values
    ulp = 2.0 ** (torch.frexp(best[0]).exponent.item() - 8)
    return float(best[0] - best[1]), 1e-4 if dtype == torch.float32 else 4 * ulp


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_LL_05_any_number_of_draft_tokens_in_lower_precision(dtype):
    requests = eight("greedy")
    texts = [plain(request, tiny_model(dtype=dtype)) for request in requests]
    ties = 0
    for draft, num_draft_tokens in itertools.product(("ngram", "model"), (1, 2, 5, 8)):
        lower = tiny_model(dtype=dtype, n_layer=2) if draft == "model" else draft
        engine = make_engine(tiny_model(dtype=dtype), draft=lower, num_draft_tokens=num_draft_tokens)
        for request, text, completion in zip(requests, texts, run(engine, requests), strict=True):
            pairs = enumerate(zip(text, completion.token_ids, strict=True))
            first = next((i for i, (mine, theirs) in pairs if mine != theirs), None)
            if first is not None:
                ties += 1
                gap, allowed = tie_gap(request, text, first, dtype)
                assert gap <= allowed, f"{draft} G={num_draft_tokens}: position {first} differs at a gap of {gap}"
    print(f"{dtype}: {ties} of 64 requests met a tie")
    assert ties == 0 or (dtype == torch.bfloat16 and ties <= 64 // 4)


def test_LL_14_prompts_that_are_nearly_alike_do_not_mix():
    stem = random_prompt(20, seed=1)
    prompts = [[*stem, *[30 + i] * (1 + i % 3), 5, 6] for i in range(5)]
    requests = [ask(str(i), prompt, max_new_tokens=16) for i, prompt in enumerate(prompts)]
    texts = [c.token_ids for c in run(make_engine(draft="model"), requests)]
    assert texts == [recompute(request) for request in requests]
    assert len(set(map(tuple, texts))) == 5, "the prompts are too alike to show a mix-up"


def test_RB_01_unequal_prompts_in_one_batch_and_their_first_logits():
    prompts = [random_prompt(n, seed=n) for n in (1, 7, 33)]
    requests = [ask(str(i), prompt, max_new_tokens=32) for i, prompt in enumerate(prompts)]
    assert [c.token_ids for c in run(make_engine(), requests)] == [recompute(request) for request in requests]
    model = LogitsSpy()
    engine = make_engine(model)
    for request in requests:
        engine.add_request(request)
    engine.step()
    alone = [tiny_gpt()(torch.tensor([prompt]))[0, -1] for prompt in prompts]
    torch.testing.assert_close(model.first[:, 0], torch.stack(alone), rtol=0, atol=1e-9)


class LogitsSpy:
    """A tiny model that keeps the first logits asked of it."""

    def __init__(self) -> None:
        self._inner, self.first = tiny_model(), torch.empty(0)

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def logits(self, hidden):
        logits = self._inner.logits(hidden)
        if not self.first.numel():
            self.first = logits.reshape(logits.shape[0], 1, -1)
        return logits


def test_RB_02_end_of_text_inside_a_prompt_is_seen_like_any_token():
    rows = [ask("a", [5, 2, 9, 2, 6], max_new_tokens=20, eos=[2]), ask("b", random_prompt(12, seed=3), eos=[2])]
    completions = run(make_engine(draft="ngram"), rows)
    assert [c.token_ids for c in completions] == [recompute(request) for request in rows]
    masked = ask("c", [5, 9, 6], max_new_tokens=20, eos=[2])
    assert completions[0].token_ids != recompute(masked)


def test_RB_05_unequal_limits_return_in_the_order_given():
    limits = [3, 40, 17]
    requests = [ask(f"{n}", random_prompt(n, seed=n), max_new_tokens=limits[i]) for i, n in enumerate((1, 17, 6))]
    completions = make_engine(draft="ngram").generate(requests)
    assert [c.completion_tokens for c in completions] == limits
    assert [c.token_ids for c in completions] == [recompute(request) for request in requests]
    assert [c.prompt_tokens for c in completions] == [1, 17, 6]


def test_RB_08_the_order_of_rows_does_not_matter():
    requests = [ask(f"{n}", random_prompt(n, seed=n), max_new_tokens=10) for n in (7, 2, 9, 4)]
    wanted = {request.id: recompute(request) for request in requests}
    for order in itertools.permutations(requests):
        engine = make_engine(draft="model", num_draft_tokens=2, slots=4)
        assert {r.id: c.token_ids for r, c in zip(order, run(engine, order), strict=True)} == wanted


@pytest.mark.parametrize("draft", ["ngram", "model", "early-exit:1"])
def test_KV_09_and_KV_11_one_engine_again_and_again(draft):
    """Short, long, short; the same prompt twice, a beginning of it, one that ends otherwise; a stream left early."""
    base = random_prompt(40, seed=8)
    prompts = [base[:3], random_prompt(120, seed=9), base[:3], base, base, base[:-1], [*base[:-1], base[-1] ^ 1]]
    engine = make_engine(draft=draft, slots=2)
    for number, prompt in enumerate(prompts):
        request = ask(f"{number}", prompt, max_new_tokens=50 if len(prompt) == 120 else 12)
        assert run(engine, [request])[0].token_ids == recompute(request)
        engine.add_request(ask("left", base[::-1], max_new_tokens=30))
        engine.step(), engine.step()
        assert engine.abort("left") is not None
    assert_idle(engine)
