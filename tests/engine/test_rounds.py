"""Rounds with scripted drafts: any pattern of acceptance, in any company, at any width.

Cases: CP-08 (the width half), KV-08, LL-06 (as D4 decides it: kept iff equal, so that no residual distribution exists),
RB-07, RB-12, SP-07, SP-08 (there is no accept draw whose uniformity could be tested; the noise has its own test in
ops).
"""

from __future__ import annotations

import math
import random

import pytest
import torch

from litspec.draft import NgramProposer, Proposal, Proposer
from litspec.model.window import Shapes
from tests.engine.scripted import FixedTarget, ScriptedProposer, ScriptedTarget, Spy
from tests.engine.support import ask, assert_idle, make_engine, random_prompt, run


def truth(tokens: list[int]) -> int:
    """A next token that depends on every token before it."""
    return (sum(tokens) * 7 + tokens[-1] * 3 + len(tokens)) % 31


def greedy(prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(truth(tokens))
    return tokens[len(prompt) :]


def check_random_patterns(seed: int, num_rows: int, num_tokens: int) -> None:
    chance = random.Random(seed)
    num_draft_tokens = chance.choice([1, 2, 4, 7])
    patterns: dict[tuple[str, int], tuple[int, int]] = {}

    def pattern(name: str, step: int, limit: int) -> tuple[int, int]:
        drafted = chance.randint(0, limit) if limit > 0 else 0
        return patterns.setdefault((name, step), (drafted, chance.randint(0, drafted)))

    proposer = ScriptedProposer(truth, pattern)
    engine = make_engine(ScriptedTarget(truth), draft=proposer, slots=num_rows, num_draft_tokens=num_draft_tokens)
    requests = [
        ask(f"{row}", [chance.randrange(31) for _ in range(chance.randint(1, 20))], max_new_tokens=num_tokens)
        for row in range(num_rows)
    ]
    completions = run(engine, requests)
    for request, completion in zip(requests, completions, strict=True):
        assert completion.token_ids == greedy(request.prompt_ids, num_tokens), f"seed {seed}, row {request.id}"
        made = [(drafted, right) for (name, _), (drafted, right) in patterns.items() if name == request.id]
        assert completion.stats.drafted == sum(drafted for drafted, _ in made)
        assert completion.stats.accepted == sum(right for _, right in made)
        assert completion.stats.rounds == len(made)
    assert sorted(proposer.released) == sorted(request.id for request in requests)
    assert_idle(engine)


@pytest.mark.parametrize("num_rows", range(1, 9))
def test_RB_07_random_acceptance_in_every_row(num_rows):
    for seed in range(num_rows, 51, 8):
        check_random_patterns(seed, num_rows, 60)


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", range(1, 9))
def test_RB_07_random_acceptance_at_length(num_rows):
    for seed in range(50):
        check_random_patterns(1000 + seed, num_rows, 200)


def test_KV_08_rows_advance_by_what_each_of_them_accepted():
    cycle = (0, 2, 4)
    proposer = ScriptedProposer(truth, lambda name, step, limit: (4, cycle[(int(name) + step) % 3]))
    engine = make_engine(ScriptedTarget(truth), draft=proposer, slots=3)
    requests = [ask(f"{row}", [row + 1, 5, row], max_new_tokens=64) for row in range(3)]
    for request in requests:
        engine.add_request(request)
    engine.step()
    for step in range(12):
        gained = [len(emission.token_ids) for emission in engine.step()]
        assert gained == [cycle[(row + step) % 3] + 1 for row in range(3)]
        assert [r.length for r in requests] == [r.num_prompt_tokens + r.num_emitted - 1 for r in requests]
    while engine.has_active_requests():
        engine.step()
    assert [r.output_ids for r in requests] == [greedy(r.prompt_ids, 64) for r in requests]


@pytest.mark.parametrize(("num_draft_tokens", "shapes"), [(0, (1,)), (2, (1, 3)), (5, (1, 3, 6))])
def test_CP_08_the_smallest_width_that_covers_the_proposals_is_used(num_draft_tokens, shapes):
    lengths = [0, 1, 2, 3, 5]
    target = Spy(ScriptedTarget(truth))
    proposer = ScriptedProposer(truth, lambda name, step, limit: (lengths[step % 5], step % 2))
    engine = make_engine(
        target, draft=proposer, shapes=Shapes((2,), shapes, (16,)), slots=2, num_draft_tokens=num_draft_tokens
    )
    request = ask("a", [3, 1, 2], max_new_tokens=40)
    engine.add_request(request)
    engine.step()
    target.calls.clear()
    while engine.has_active_requests():
        before = request.length
        step = len(target.calls)
        engine.step()
        fed = min(lengths[step % 5], num_draft_tokens, 40 - (before - 2) - 1) + 1
        idx, positions, slots = target.calls[-1]
        assert len(idx[0]) == next(width for width in shapes if width >= fed)
        assert positions[0] == [*range(before, before + fed), *[before + fed - 1] * (len(idx[0]) - fed)]
        assert idx[0][fed:] == [idx[0][fed - 1]] * (len(idx[0]) - fed), "padding repeats the last token"
        assert (slots, set(positions[1])) == ([0, 2], {0}), "a missing row feeds the scratch slot"
    assert request.output_ids == greedy(request.prompt_ids, 40)
    if num_draft_tokens == 5:
        assert [len(idx[0]) for idx, _, _ in target.calls[:5]] == [1, 3, 3, 6, 6]


def test_padding_of_a_short_proposal_is_never_accepted():
    """The target says 5 for ever, so padding, which repeats the last token, would be right each time."""

    class Fives(Proposer):
        def propose(self, rows, limits):
            counts = [min(int(row.id), limit) for row, limit in zip(rows, limits, strict=True)]
            return Proposal(torch.full((len(rows), 3), 5), counts)

    engine = make_engine(ScriptedTarget(lambda tokens: 5), draft=Fives(), num_draft_tokens=3)
    completions = run(engine, [ask(f"{count}", [1], max_new_tokens=13) for count in (0, 1, 3)])
    assert [c.token_ids for c in completions] == [[5] * 13] * 3
    assert [c.stats.rounds for c in completions] == [12, 6, 3]
    assert [c.stats.accepted for c in completions] == [0, 6, 9]


def test_no_row_drafts_beyond_what_it_may_still_emit():
    requests = [ask(f"{n}", [1], max_new_tokens=n) for n in (1, 2, 3, 9)]
    limits = {}

    class Noting(Proposer):
        def propose(self, rows, row_limits):
            limits.update((row.id, limit) for row, limit in zip(rows, row_limits, strict=True) if row.id not in limits)
            return Proposal.of([[] for _ in rows])

    run(make_engine(draft=Noting()), requests)
    assert limits == {"2": 0, "3": 1, "9": 4}


def test_RB_12_a_short_request_leaves_and_the_next_one_takes_its_place():
    engine = make_engine(ScriptedTarget(truth), slots=2, num_draft_tokens=0)
    short, long, third = (ask(name, [4, 2], max_new_tokens=n) for name, n in (("s", 4), ("l", 400), ("t", 5)))
    for request in (short, long, third):
        engine.add_request(request)
    assert not engine.has_capacity()
    while short.finish_reason is None:
        engine.step()
    assert long.num_emitted == 4
    assert not engine.has_capacity(), "the free slot is spoken for"
    engine.step()
    assert (third.slot, third.num_emitted) == (0, 1)
    while third.finish_reason is None:
        engine.step()
    assert long.num_emitted < 20
    assert engine.has_capacity()
    engine.abort("l")
    assert third.output_ids == greedy([4, 2], 5)
    assert_idle(engine)


@pytest.mark.parametrize(("probabilities", "accepted"), [((0.5, 0.3, 0.2), 0.2), ((0.6, 0.4, 0.0), 0.0)])
def test_LL_06_what_is_accepted_and_what_stands_in_place_of_the_refused(probabilities, accepted):
    """A draft that always says token 2: kept as often as the target draws it; else the target's own token stands."""
    logits = torch.tensor([math.log(p) if p else -math.inf for p in probabilities], dtype=torch.float64)
    proposer = AlwaysTwo()
    engine = make_engine(FixedTarget(logits), draft=proposer, slots=50, num_draft_tokens=1)
    requests = [ask(f"{seed}", [0], max_new_tokens=401, temperature=1.0, seed=seed) for seed in range(50)]
    completions = run(engine, requests)
    rounds = sum(c.stats.drafted for c in completions)
    assert rounds > 15_000
    assert abs(sum(c.stats.accepted for c in completions) / rounds - accepted) < 0.015
    # After a round that refused, its one token is the bonus.
    refused = [0, 0, 0]
    for request in proposer.last_tokens.values():
        for token in request:
            refused[token] += 1
    assert refused[2] == 0
    assert abs(refused[0] / sum(refused) - probabilities[0] / (probabilities[0] + probabilities[1])) < 0.015


class AlwaysTwo(Proposer):
    """Proposes token 2, and notes the token of every round that emitted one alone, which is one that refused it."""

    def __init__(self) -> None:
        self.last_tokens: dict[str, list[int]] = {}
        self._lengths: dict[str, int] = {}

    def propose(self, rows, limits):
        for row in rows:
            grown = len(row.tokens) - self._lengths.get(row.id, 0)
            if row.id in self._lengths and grown == 1:
                self.last_tokens.setdefault(row.id, []).append(row.tokens[-1])
            self._lengths[row.id] = len(row.tokens)
        return Proposal.of([[2] * min(limit, 1) for limit in limits])


def test_SP_07_rows_without_a_seed_have_noise_of_their_own():
    target = FixedTarget(torch.zeros(32, dtype=torch.float64))
    requests = [ask(f"{i}", [1, 2, 3], max_new_tokens=10, temperature=1.0, seed=None) for i in range(16)]
    completions = run(make_engine(target, draft=NgramProposer(min_n=1), slots=16), requests)
    texts = [tuple(c.token_ids) for c in completions]
    assert len(set(texts)) >= 12
    firsts = [text[0] for text in texts]
    agreement = sum(firsts[i] == firsts[j] for i in range(16) for j in range(i)) / 120
    assert abs(agreement - 1 / 32) < 0.1
    assert len({c.seed for c in completions}) == 16
    for request, completion in zip(requests, completions, strict=True):
        again = ask("again", request.prompt_ids, max_new_tokens=10, temperature=1.0, seed=completion.seed)
        assert run(make_engine(target), [again])[0].token_ids == completion.token_ids


def test_SP_08_seeds_give_distinct_texts_and_each_its_own_again():
    target = FixedTarget(torch.zeros(32, dtype=torch.float64))
    requests = [ask(f"{s}", [1], max_new_tokens=12, temperature=1.0, seed=s % 16) for s in range(32)]
    texts = [tuple(c.token_ids) for c in run(make_engine(target, draft="ngram", num_draft_tokens=5), requests)]
    assert len(set(texts[:16])) >= 14
    assert texts[:16] == texts[16:]


def test_a_prompt_of_the_longest_kind_in_random_company():
    requests = [ask(f"{n}", random_prompt(n, seed=n, vocab_size=31), max_new_tokens=9) for n in (300, 1, 256, 257, 16)]
    completions = run(make_engine(ScriptedTarget(truth), draft="ngram", slots=4), requests)
    assert [c.token_ids for c in completions] == [greedy(r.prompt_ids, 9) for r in requests]
