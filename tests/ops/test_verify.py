"""verify_draft against a loop over rows, and LL-04: the first draft token is compared at its own position."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from litspec.ops.verify import verify_draft


def accepted_by_loop(draft: list[int], target: list[int], num_drafted: int) -> int:
    count = 0
    while count < num_drafted and draft[count] == target[count]:
        count += 1
    return count


def test_a_single_wrong_draft_token_is_rejected():
    # LL-04: after 6, 6, 6 the target says 2, 3, 4; prompt lookup proposed sixes.
    for G in (1, 4):
        draft, target = torch.full((1, G), 6), torch.tensor([[2, 3, 4, 9, 9][: G + 1]])
        assert verify_draft(draft, target, torch.tensor([G])).tolist() == [0]


def test_rows_accept_on_their_own():
    # KV-08: accept lengths 0, 2 and 4 in one step.
    target = torch.tensor([[1, 2, 3, 4, 5]] * 3)
    draft = torch.tensor([[9, 2, 3, 4], [1, 2, 9, 4], [1, 2, 3, 4]])
    assert verify_draft(draft, target, torch.tensor([4, 4, 4])).tolist() == [0, 2, 4]


def test_padding_is_never_accepted_even_where_it_agrees():
    target = torch.tensor([[7, 7, 7, 7]])
    counts = [verify_draft(torch.full((1, 3), 7), target, torch.tensor([n])).item() for n in range(4)]
    assert counts == [0, 1, 2, 3]


def test_a_target_of_the_draft_width_will_do_and_no_draft_accepts_nothing():
    assert verify_draft(torch.tensor([[3]]), torch.tensor([[3]]), torch.tensor([1])).tolist() == [1]
    none = verify_draft(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2))
    assert none.tolist() == [0, 0] and none.dtype == torch.int64


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 3), st.integers(0, 2**31))
def test_equals_a_loop_over_rows(B, G, beyond, seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 2, (B, G + beyond), generator=generator)
    draft = torch.where(torch.rand(B, G, generator=generator) < 0.8, target[:, :G], 1 - target[:, :G])
    num_drafted = torch.randint(0, G + 1, (B,), generator=generator)
    got = verify_draft(draft, target, num_drafted)
    rows = zip(draft.tolist(), target.tolist(), num_drafted.tolist(), strict=True)
    assert got.tolist() == [accepted_by_loop(*row) for row in rows]
    assert got.dtype == torch.int64
