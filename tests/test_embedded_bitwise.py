"""The embedded model as it is served here: what it computes for a token is the same, bit for bit, however it is fed.

All of a prompt at once or in pieces, in windows of any width, alone or beside others, with one thread or several: the
residual stream, the logits and the cache must be equal, and with them every token that is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from litspec.api.loading import open_model
from litspec.kvcache import KVCache
from litspec.model.compile import CompiledGPT
from litspec.model.gpt import GPT
from litspec.model.window import pack_window
from litspec.ops.packed import is_packed

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(600)]
LENGTH = 150
IDS = torch.randint(0, 49_000, (4, LENGTH), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module")
def model() -> CompiledGPT:
    opened = open_model("smollm2-135m-instruct")
    assert opened.checkpoint is not None
    gpt = GPT(opened.config, max_seq_length=256)
    gpt.load(opened.checkpoint.packed_tensors())
    assert gpt.dtype == torch.float32 and is_packed(gpt.embedding)
    return CompiledGPT(gpt, "none")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Fed:
    """A cache of five slots, and the residual stream of what was fed."""

    def __init__(self, model: CompiledGPT) -> None:
        self.model = model
        self.cache: KVCache = model.new_cache(5)
        self.hidden: dict[int, list[torch.Tensor]] = {}

    @torch.inference_mode()
    def feed(self, runs: dict[int, tuple[int, Sequence[int]]], *, rows: int, width: int) -> None:
        """Feed each slot a run of tokens from a position on, in a window of that shape."""
        window = pack_window(
            [run for _, run in runs.values()],
            [start for start, _ in runs.values()],
            list(runs),
            rows=rows,
            width=width,
            scratch_slot=self.cache.scratch_slot,
        )
        hidden = self.model.hidden(window.idx_BT, window.input_pos_BT, cache=self.cache, slots=window.slots_B)
        for row, (slot, (_, run)) in enumerate(runs.items()):
            self.hidden.setdefault(slot, []).append(hidden[row, : len(run)].clone())

    @torch.inference_mode()
    def found(self, slot: int) -> list[torch.Tensor]:
        """Return the slot's residual stream, logits and cache."""
        hidden = torch.cat(self.hidden[slot])
        caches = [t[slot, :, :LENGTH].clone() for layer in (*self.cache.k, *self.cache.v) for t in (layer,)]
        return [hidden, self.model.logits(hidden), *caches]


def alone(model: CompiledGPT, ids: Sequence[int], widths: Sequence[int], slot: int = 0) -> list[torch.Tensor]:
    """Feed one sequence in windows of these widths, over and over."""
    fed, position, turn = Fed(model), 0, 0
    while position < LENGTH:
        width = widths[turn % len(widths)]
        run = ids[position : position + width]
        fed.feed({slot: (position, run)}, rows=1, width=width)
        position, turn = position + len(run), turn + 1
    return fed.found(slot)


@pytest.fixture(scope="module")
def expected(model) -> list[list[torch.Tensor]]:
    """Each sequence, one token at a time and alone."""
    return [alone(model, ids, [1]) for ids in IDS]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("widths", [[LENGTH], [256], [64], [16], [2], [3], [4], [8], [6, 1, 8, 64, 3]], ids=str)
def test_windows_and_chunks_of_any_width(model, expected, widths):
    assert_equal(alone(model, IDS[0], widths), expected[0])


def test_another_slot(model, expected):
    assert_equal(alone(model, IDS[1], [7], slot=3), expected[1])


@pytest.mark.parametrize("rows", [4, 5, 8])
def test_rows_of_a_ragged_batch(model, expected, rows):
    fed = Fed(model)
    lengths = {0: 100, 4: 3, 2: 57, 1: 140}
    for slot, ids in zip(lengths, IDS, strict=True):
        fed.feed({slot: (0, ids[: lengths[slot]])}, rows=1, width=150)
    turn = 0
    while any(length < LENGTH for length in lengths.values()):
        width = (1, 4, 8, 2)[turn % 4]
        runs = {}
        for place, slot in enumerate(lengths):
            run = IDS[place][lengths[slot] : lengths[slot] + 1 + (turn + place) % width]
            if run:
                runs[slot] = (lengths[slot], run)
                lengths[slot] += len(run)
        fed.feed(runs, rows=rows, width=width)
        turn += 1
    for place, slot in enumerate(lengths):
        assert_equal(fed.found(slot), expected[place])


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(model, expected, threads):
    torch.set_num_threads(threads)
    assert_equal(alone(model, IDS[0], [64, 1, 5]), expected[0])


def test_compiled_blocks(model, expected):
    compiled = CompiledGPT(model.gpt, "thunder")
    assert_equal(alone(compiled, IDS[2], [64]), expected[2])
