"""index_select_2d and index_copy_2d against a loop over rows, over shapes, dims, strides, dtypes and slots."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from litspec.ops import index_copy_2d, index_copy_2d_, index_select_2d

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)
LAYOUTS = ("contiguous", "transposed", "sliced", "offset")


def select_by_loop(t: Tensor, dim: int, idx: Tensor, rows: list[int]) -> Tensor:
    if dim == 0:
        return torch.stack([torch.stack([t[i] for i in row]) for row in idx.tolist()])
    per_row = [torch.index_select(t[r], dim - 1, idx[b].long()) for b, r in enumerate(rows)]
    return torch.stack(per_row)


def copy_by_loop(t: Tensor, dim: int, idx: Tensor, src: Tensor, rows: list[int]) -> Tensor:
    t = t.clone()
    for b in range(idx.shape[0]):
        for j in range(idx.shape[1]):
            position = int(idx[b, j])
            if dim == 0:
                t[position] = src[b, j]
            else:
                t[rows[b]].select(dim - 1, position).copy_(src[b].select(dim - 1, j))
    return t


def random_tensor(shape: list[int], dtype: torch.dtype, layout: str) -> Tensor:
    """Return distinct-ish values with the asked shape, lying in memory as the layout says."""
    made = list(shape)
    if layout == "transposed":
        made[0], made[-1] = made[-1], made[0]
    elif layout == "sliced":
        made[-1] *= 2
    elif layout == "offset":
        made[0] += 1
    values = torch.randint(-100, 100, made)
    t = (values % 2 == 0) if dtype == torch.bool else values.to(dtype)
    if layout == "transposed":
        t = t.transpose(0, -1)
    elif layout == "sliced":
        t = t[..., ::2]
    elif layout == "offset":
        t = t[1:]
    assert list(t.shape) == list(shape)
    return t


@st.composite
def cases(draw):
    """Draw (t, dim as given, non-negative dim, idx, rows_B or None, row of t per batch row), positions distinct."""
    ndim = draw(st.integers(1, 5))
    shape = draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim))
    given_dim = draw(st.integers(-ndim, ndim - 1))
    dim = given_dim % ndim
    dtype, layout = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(LAYOUTS))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    t = random_tensor(shape, dtype, layout)
    rows_B = None
    if dim == 0:
        B = draw(st.integers(1, 4))
        T = draw(st.integers(0, shape[0] // B))
        idx = torch.randperm(shape[0])[: B * T].view(B, T)  # distinct over all rows, since they share t's first dim
    else:
        B = shape[0]
        if draw(st.booleans()):
            B = draw(st.integers(1, shape[0]))
            rows_B = torch.randperm(shape[0])[:B]
        T = draw(st.integers(0, shape[dim]))
        idx = torch.stack([torch.randperm(shape[dim])[:T] for _ in range(B)])
    idx = idx.to(draw(st.sampled_from((torch.int32, torch.int64))))
    if draw(st.booleans()):
        idx = idx.t().contiguous().t()
    rows = list(range(B)) if rows_B is None else rows_B.tolist()
    return t, given_dim, dim, idx, rows_B, rows


@settings(max_examples=150, deadline=None)
@given(cases())
def test_select_and_copies_equal_a_loop_over_rows(case):
    t, given_dim, dim, idx, rows_B, rows = case
    before = t.clone()
    got = index_select_2d(t, given_dim, idx, rows_B=rows_B)
    if idx.shape[1]:
        assert torch.equal(got, select_by_loop(t, dim, idx, rows))
    assert got.dtype == t.dtype

    src = random_tensor(list(got.shape), t.dtype, "contiguous") if got.numel() else torch.empty_like(got)
    src = src.transpose(0, -1).contiguous().transpose(0, -1)
    want = copy_by_loop(t, dim, idx, src, rows)
    assert torch.equal(index_copy_2d(t, given_dim, idx, src, rows_B=rows_B), want)
    assert torch.equal(t, before)
    pointer = t.data_ptr()
    assert index_copy_2d_(t, given_dim, idx, src, rows_B=rows_B) is t
    assert torch.equal(t, want) and t.data_ptr() == pointer
    assert torch.equal(index_select_2d(t, given_dim, idx, rows_B=rows_B), src)


@pytest.mark.parametrize("rows_B", [None, torch.tensor([0, 1])])
def test_expanded_index_and_source(rows_B):
    t = torch.arange(2 * 3 * 6 * 2.0).view(2, 3, 6, 2)
    idx = torch.tensor([4, 0, 5]).expand(2, 3)
    assert torch.equal(index_select_2d(t, 2, idx, rows_B=rows_B), t[:, :, [4, 0, 5]])
    src = torch.tensor(7.0).expand(2, 3, 3, 2)
    want = t.clone()
    want[:, :, [4, 0, 5]] = 7.0
    assert torch.equal(index_copy_2d(t, 2, idx, src, rows_B=rows_B), want)


def test_select_may_read_one_slot_for_two_rows_and_one_position_twice():
    t = torch.arange(12.0).view(3, 4)
    got = index_select_2d(t, 1, torch.tensor([[0, 0], [3, 1]]), rows_B=torch.tensor([2, 2]))
    assert got.tolist() == [[8, 8], [11, 9]]


def test_duplicate_positions_with_equal_values_are_written_once():
    t = torch.zeros(2, 1, 5, 2)
    idx = torch.tensor([[1, 2, 2, 2], [4, 4, 4, 4]])
    src = torch.randn(2, 1, 4, 2)
    src[0, :, 2:] = src[0, :, 1:2]
    src[1] = src[1, :, :1]
    index_copy_2d_(t, 2, idx, src)
    assert torch.equal(t[0, :, 1:3], src[0, :, :2]) and torch.equal(t[1, :, 4], src[1, :, 0])
    assert t.count_nonzero() == 6


def test_a_write_reaches_the_tensor_behind_a_view():
    whole = torch.zeros(3, 2, 8, 4)
    index_copy_2d_(whole[:, :, :6], 2, torch.tensor([[5]]), torch.ones(1, 2, 1, 4), rows_B=torch.tensor([1]))
    assert whole[1, :, 5].eq(1).all() and whole.sum() == 8


T43 = torch.zeros(4, 3)
I42 = torch.zeros(4, 2, dtype=torch.int64)
ERRORS = [
    ((T43, 2, I42), {}, "dim was 2; a tensor of 2 dimensions allows -2 to 1"),
    ((T43, -3, I42), {}, "dim was -3; a tensor of 2 dimensions allows -2 to 1"),
    ((torch.zeros(()), 0, I42), {}, "dim was 0; a tensor of 0 dimensions"),
    ((T43, 1, I42[0]), {}, r"idx was \(2,\) torch.int64; it must be 2-D \(B, T\) and int32 or int64"),
    ((T43, 1, I42.float()), {}, r"idx was \(4, 2\) torch.float32; it must be 2-D"),
    ((T43, 1, I42.bool()), {}, r"idx was \(4, 2\) torch.bool; it must be 2-D"),
    (
        (T43, 0, I42),
        {"rows_B": torch.arange(4)},
        "rows_B was given with dim = 0, which is a plain gather",
    ),
    ((T43, -2, I42), {"rows_B": torch.arange(4)}, "rows_B was given with dim = 0"),
    ((T43, 1, I42[:2]), {}, "t has 4 rows and idx 2; they must agree unless rows_B maps them"),
    ((T43, 1, I42), {"rows_B": torch.arange(3)}, r"rows_B was \(3,\); idx has 4 rows, so it must be \(4,\)"),
    ((T43, 1, I42), {"rows_B": I42}, r"rows_B was \(4, 2\); idx has 4 rows"),
]


@pytest.mark.parametrize(("arguments", "options", "message"), ERRORS)
def test_what_does_not_fit_is_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        index_select_2d(*arguments, **options)
    for copy in (index_copy_2d, index_copy_2d_):
        with pytest.raises(ValueError, match=message):
            copy(*arguments, torch.zeros(4, 2), **options)


@pytest.mark.parametrize("copy", [index_copy_2d, index_copy_2d_])
@pytest.mark.parametrize(
    ("dim", "src", "message"),
    [
        (1, torch.zeros(4, 3), r"src was \(4, 3\) torch.float32; for this t, dim and idx it must be \(4, 2\) torch.fl"),
        (1, torch.zeros(1, 2), r"src was \(1, 2\) torch.float32; for this t, dim and idx it must be \(4, 2\)"),
        (1, torch.zeros(4, 2).double(), r"src was \(4, 2\) torch.float64; .* must be \(4, 2\) torch.float32"),
        (0, torch.zeros(4, 2), r"src was \(4, 2\) torch.float32; for this t, dim and idx it must be \(4, 2, 3\)"),
    ],
)
def test_a_source_that_does_not_fit_is_refused(copy, dim, src, message):
    t = T43.clone()
    with pytest.raises(ValueError, match=message):
        copy(t, dim, I42, src)


@pytest.mark.parametrize("dim", [0, 1])
def test_an_index_out_of_range_is_refused(dim):
    with pytest.raises(IndexError):
        index_select_2d(torch.zeros(4, 4), dim, torch.full((4, 1), 4))
    with pytest.raises(IndexError):
        index_select_2d(torch.zeros(4, 4), dim, torch.full((4, 1), -5))
