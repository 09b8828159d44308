"""What requests change in their logits before a token is chosen: penalties, bias and bans.

`RowEdits` belongs to one request and counts its text as it grows; `LogitEdits` is a batch of them for one window, as
tensors. A window's position j chooses a token after the row's text and the first j tokens of its own draft, and that
context alone decides what is changed there: so a token's scores are the same in any window, in any batch, with and
without a draft. Work and memory follow the ids that a request has seen or named, never the vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from litspec.ops.penalties import edit_entries


class EditFields(Protocol):
    """The sampling parameters that speak of certain tokens."""

    @property
    def min_tokens(self) -> int:
        """No end of the text before so many tokens were emitted."""
        ...

    @property
    def repetition_penalty(self) -> float:
        """Divides a positive score of what prompt or output has, multiplies another; 1 is none."""
        ...

    @property
    def presence_penalty(self) -> float:
        """Taken from the score of what the output has."""
        ...

    @property
    def frequency_penalty(self) -> float:
        """Taken from a score as often as the output has that token."""
        ...

    @property
    def logit_bias(self) -> dict[int, float] | None:
        """Added to the scores of these ids."""
        ...


class WindowEdits(NamedTuple):
    """One row's edits for a window of W positions, over the N ids that it changes anywhere."""

    ids_N: np.ndarray
    repetition_WN: np.ndarray
    offset_WN: np.ndarray


class _Table:
    """The ids that a row may change, each in a place of its own, with what is known of each; it grows at the end."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self._ids = np.zeros(16, dtype=np.int64)
        self._counts = np.zeros(16)
        self._bias = np.zeros(16)
        self._is_in_prompt = np.zeros(16, dtype=bool)

    ids = property(lambda self: self._ids[: len(self.places)])
    counts = property(lambda self: self._counts[: len(self.places)])
    bias = property(lambda self: self._bias[: len(self.places)])
    is_in_prompt = property(lambda self: self._is_in_prompt[: len(self.places)])

    def place(self, token_id: int) -> int:
        """Return the place of an id, a new one where it has none."""
        place = self.places.setdefault(token_id, len(self.places))
        if place == len(self._ids):
            for name in ("_ids", "_counts", "_bias", "_is_in_prompt"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate((column, np.zeros_like(column))))
        self._ids[place] = token_id
        return place


class RowEdits:
    """What one request changes in its logits; made by `RowEdits.of`."""

    def __init__(
        self,
        params: EditFields,
        num_prompt_tokens: int,
        end_ids: Collection[int],
        bad_words: Iterable[Sequence[int]],
    ) -> None:
        self._repetition = params.repetition_penalty
        self._presence, self._frequency = params.presence_penalty, params.frequency_penalty
        self._counts_text = (self._repetition, self._presence, self._frequency) != (1.0, 0.0, 0.0)
        self._num_prompt_tokens = num_prompt_tokens
        self._num_read = 0
        self._table = _Table()
        for token_id, bias in (params.logit_bias or {}).items():
            place = self._table.place(token_id)
            self._table.bias[place] = bias
        self._has_bias = bool(self._table.bias.any())
        self._min_tokens = params.min_tokens if end_ids else 0
        self._end_places = [self._table.place(token_id) for token_id in sorted(end_ids)] if self._min_tokens else []
        # the ids that would complete a bad word, by what stands before the last one
        self._completions: dict[tuple[int, ...], list[int]] = {}
        for *start, last in bad_words:
            self._completions.setdefault(tuple(start), []).append(self._table.place(last))
        self._start_lengths = sorted({len(start) for start in self._completions})

    @classmethod
    def of(
        cls,
        params: EditFields,
        prompt_ids: Sequence[int],
        *,
        end_ids: Collection[int],
        bad_words: Iterable[Sequence[int]] = (),
    ) -> RowEdits | None:
        """Return what a request changes; None where that is nothing.

        Args:
            params: its parameters.
            prompt_ids: its prompt, read with the first window; the tokens after it are its output.
            end_ids: ids that are banned until min_tokens were emitted.
            bad_words: token ids of each bad word, at least one; its last id is banned where the text (prompt included)
                ends with all before it.
        """
        edits = cls(params, len(prompt_ids), end_ids, bad_words)
        return edits if edits._always_edits or edits._min_tokens else None

    @property
    def _always_edits(self) -> bool:
        return self._counts_text or self._has_bias or bool(self._completions)

    def window(self, tokens: Sequence[int], draft: Sequence[int], width: int) -> WindowEdits | None:
        """Return the edits for each position of a window, whose position j comes after `tokens` and `draft[:j]`.

        Args:
            tokens: prompt and output up to now; those of earlier calls are a prefix of them and are not read again.
            draft: this round's draft tokens; positions beyond its end have all of it before them.
            width: W.

        Returns:
            None where no position changes anything.
        """
        self._extend(tokens)
        num_emitted = len(tokens) - self._num_prompt_tokens
        if not (self._always_edits or num_emitted < self._min_tokens):
            return None
        ids_N, counts_WN = self._counts(draft if self._counts_text else (), width)
        N = len(self._table.ids)  # the ids that only the draft has come after these
        has_occurred_WN = counts_WN > 0
        is_seen_WN = has_occurred_WN.copy()
        is_seen_WN[:, :N] |= self._table.is_in_prompt
        repetition_WN = np.where(is_seen_WN, self._repetition, 1.0)
        offset_WN = -self._presence * has_occurred_WN - self._frequency * counts_WN
        offset_WN[:, :N] += self._table.bias
        recent = [*tokens[len(tokens) - min(len(tokens), self._start_lengths[-1]) :]] if self._start_lengths else []
        for position in range(width):
            drafted = draft[:position]
            if num_emitted + len(drafted) < self._min_tokens:
                offset_WN[position, self._end_places] = -np.inf
            if self._completions:
                offset_WN[position, self._completing([*recent, *drafted])] = -np.inf
        return WindowEdits(ids_N, repetition_WN, offset_WN)

    def _extend(self, tokens: Sequence[int]) -> None:
        assert len(tokens) >= self._num_read, "a request's text never shrinks"
        if self._repetition != 1.0:
            prompt_ids = dict.fromkeys(tokens[self._num_read : self._num_prompt_tokens])
            places = [self._table.place(token_id) for token_id in prompt_ids]
            self._table.is_in_prompt[places] = True
        if self._counts_text:
            for token_id in tokens[max(self._num_read, self._num_prompt_tokens) :]:
                place = self._table.place(token_id)
                self._table.counts[place] += 1
        self._num_read = len(tokens)

    def _counts(self, draft: Sequence[int], width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of table and draft, and how often each is in the output before each position."""
        places = self._table.places
        added: dict[int, int] = {}
        at = [
            places[token_id] if token_id in places else added.setdefault(token_id, len(places) + len(added))
            for token_id in draft[: width - 1]
        ]
        counts_WN = np.zeros((width, len(places) + len(added)))
        counts_WN[:, : len(places)] = self._table.counts
        for position, place in enumerate(at, start=1):
            counts_WN[position:, place] += 1
        return np.concatenate((self._table.ids, np.array([*added], dtype=np.int64))), counts_WN

    def _completing(self, context: Sequence[int]) -> list[int]:
        """Return the places of the ids that would complete a bad word."""
        starts = (tuple(context[len(context) - n :]) for n in self._start_lengths if n <= len(context))
        return [place for start in starts for place in self._completions.get(start, ())]


@dataclass(frozen=True)
class LogitEdits:
    """The edits of a batch for one window, as a sparse list of E entries; those that change nothing are left out.

    Attributes:
        lines_E: int64, b * W + j for row b and window position j.
        ids_E: int64, token ids.
        repetition_E: float64, repetition penalties.
        offset_E: float64, what is added after them; -inf is a ban.
        width: W.
        max_id: the highest of the ids.
    """

    lines_E: Tensor
    ids_E: Tensor
    repetition_E: Tensor
    offset_E: Tensor
    width: int
    max_id: int

    @classmethod
    def of(
        cls,
        edits: Sequence[RowEdits | None],
        tokens: Sequence[Sequence[int]],
        drafts: Sequence[Sequence[int]],
        *,
        width: int,
        device: torch.device | str = "cpu",
    ) -> LogitEdits | None:
        """Collect the edits of some rows; None where no score changes.

        Args:
            edits: each row's; they read the tokens that are new to them.
            tokens: prompt and output of each row, pending token included.
            drafts: the draft tokens of each; position j of row b comes after tokens[b] and drafts[b][:j].
            width: W, the positions of the window.
            device: where the tensors go, once each.
        """
        parts = []
        for row, (edit, text, draft) in enumerate(zip(edits, tokens, drafts, strict=True)):
            window = None if edit is None else edit.window(text, draft, width)
            if window is not None:
                position_E, place_E = np.nonzero((window.repetition_WN != 1.0) | (window.offset_WN != 0.0))
                at = position_E, place_E
                lines_E, ids_E = row * width + position_E, window.ids_N[place_E]
                parts.append((lines_E, ids_E, window.repetition_WN[at], window.offset_WN[at]))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        if not columns or len(columns[0]) == 0:
            return None
        lines_E, ids_E, repetition_E, offset_E = (torch.from_numpy(column).to(device) for column in columns)
        return cls(lines_E, ids_E, repetition_E, offset_E, width=width, max_id=int(columns[1].max()))

    def apply(self, logits_BTV: Tensor) -> Tensor:
        """Return edited logits, the raw ones untouched; the rows that edit nothing are copied bit for bit.

        Args:
            logits_BTV: T is the window's width; B may be more than the rows (padding); ids from V on are passed over.
        """
        _, T, V = logits_BTV.shape
        assert self.width == T, f"edits for a window of {self.width} and logits of {T} positions"
        columns = self.lines_E, self.ids_E, self.repetition_E, self.offset_E
        if self.max_id >= V:  # a draft's vocabulary may be smaller
            columns = (column[self.ids_E < V] for column in columns)
        lines_E, ids_E, repetition_E, offset_E = columns
        return edit_entries(logits_BTV, lines_E * V + ids_E, repetition_E, offset_E)
