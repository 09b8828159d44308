"""Drafting with a request's own sampling: its noise, its filters and its edits, as the target will use them."""

from __future__ import annotations

import torch

from litspec.draft.steps import draft_tokens, sampling_of
from litspec.engine.params import SamplingParams
from litspec.model.decode import batched_sample
from litspec.model.edits import RowEdits
from tests.draft.rows import Row

V = 20


def row(name: str, tokens: list[int], *, noise_seed: int | None = None, num_prompt: int = 2, **given) -> Row:
    params = SamplingParams(**{"seed": 3, **given})
    made = Row(name, tokens, params=params, edits=RowEdits.of(params, tokens[:num_prompt], end_ids=[0]))
    if noise_seed is not None:
        made.noise_seed = noise_seed
    return made


ROWS = [
    row("greedy", [1, 2, 3], temperature=0.0, frequency_penalty=2.0),
    row("floor", [4, 5, 6], min_p=0.2),
    row("other choice", [4, 5, 6], noise_seed=99),
    row("edited", [7, 8, 9], top_k=5, logit_bias={2: 1.5}, min_tokens=9),
]


def test_every_parameter_of_a_row_reaches_its_sampling_and_padding_is_greedy():
    sampling = sampling_of(ROWS, 6)
    assert sampling.seeds_B.tolist() == [3, 3, 99, 3, 0, 0]
    assert sampling.min_p_B.tolist() == [0.0, 0.2, 0.0, 0.0, 0.0, 0.0]
    assert (sampling.greedy_rows, sampling.full_rows, sampling.filtered_rows) == ((0, 4, 5), (1, 2), (3,))
    assert sampling.edits is not None and sampling.edits.width == 1
    edited = sampling.edits.apply(torch.zeros(6, 1, V))[:, 0]
    assert edited[0].nonzero().tolist() == [[3]] and edited[0, 3] == -2.0  # the prompt does not count
    assert edited[3].nonzero().tolist() == [[0], [2]] and edited[3, 0] == -torch.inf
    assert edited[[1, 2, 4, 5]].abs().sum() == 0
    assert sampling_of(ROWS[1:3], 2).edits is None and sampling_of([], 2).edits is None


def test_a_window_has_the_edits_of_each_position_behind_its_own_draft():
    sampling = sampling_of(ROWS, 4, drafts=[[5, 5], [], [1], [2]], width=3)
    assert sampling.edits is not None
    edited = sampling.edits.apply(torch.zeros(4, 3, V))
    assert edited[0, :, 5].tolist() == [0.0, -2.0, -4.0] and edited[0, :, 3].tolist() == [-2.0] * 3
    assert edited[3, :, 0].tolist() == [-torch.inf] * 3
    assert edited[1:3].abs().sum() == 0


def test_drafting_draws_what_the_target_draws_where_the_logits_are_the_same():
    # Logits depend on the position alone; the rows whose edits do not depend on the draft must agree throughout.
    logits_PV = torch.randn(20, V, generator=torch.Generator().manual_seed(0)) * 3
    sampling = sampling_of(ROWS, 4)
    drafted = draft_tokens(
        lambda idx, input_pos: logits_PV[input_pos[:, 0]],
        logits_PV[2].expand(4, V),
        torch.tensor([r.tokens[-1] for r in ROWS]),
        torch.tensor([3] * 4),
        torch.tensor([4] * 4),
        4,
        sampling,
    )
    window = sampling_of(ROWS, 4, drafts=drafted.tolist(), width=5)
    positions = torch.arange(3, 8).expand(4, 5)
    target = batched_sample(logits_PV[2:7].expand(4, 5, V), positions, window)
    assert torch.equal(drafted[1:], target[1:, :4])
    assert drafted[0, 0] == target[0, 0]
    assert drafted[1].tolist() != drafted[2].tolist()
