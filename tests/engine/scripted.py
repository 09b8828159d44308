"""Stand-ins for a model, a proposer and a detokeniser, whose behaviour a test writes down.

`ScriptedTarget` keeps token ids where a model keeps keys, in a real KVCache at the positions it is fed, and its next
token is a function of what it then finds there. A wrong position, slot or rewind therefore changes what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from litspec.draft import DraftRow, Proposal, Proposer
from litspec.kvcache import KVCache

Script = Callable[[list[int]], int]
BIG = 8.0


class ScriptedTarget:
    """A target whose greedy next token is `script(tokens so far)`."""

    num_shapes = 0
    device = torch.device("cpu")

    def __init__(self, script: Script, *, vocab_size: int = 64, max_seq_length: int = 512) -> None:
        self.script, self.vocab_size, self.max_seq_length = script, vocab_size, max_seq_length
        self.config = SimpleNamespace(vocab_size=vocab_size)

    def new_cache(self, num_slots: int) -> KVCache:
        return KVCache(
            n_layer=1,
            num_slots=num_slots,
            n_query_groups=1,
            max_seq_length=self.max_seq_length,
            head_size=1,
            dtype=torch.float64,
        )

    def warm_up(self, cache: KVCache, shapes: Iterable[tuple[int, int]]) -> None:
        """Nothing is compiled."""

    def hidden(self, idx: Tensor, input_pos: Tensor | None = None, *, cache: KVCache, slots: Tensor) -> Tensor:
        assert input_pos is not None
        kept = cache.k[0][:, 0, :, 0]
        kept[slots[:, None], input_pos] = idx.double()
        cache.note_fed(slots, input_pos)
        logits = torch.zeros(*idx.shape, self.vocab_size, dtype=torch.float64)
        for row, slot in enumerate(slots.tolist()):
            if slot == cache.scratch_slot:
                continue
            for column, position in enumerate(input_pos[row].tolist()):
                logits[row, column, self.script(kept[slot, : position + 1].long().tolist())] = BIG
        return logits

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


class FixedTarget(ScriptedTarget):
    """A target that has the same logits at every position, and counts nothing."""

    def __init__(self, logits_V: Tensor, *, max_seq_length: int = 8192) -> None:
        super().__init__(lambda tokens: 0, vocab_size=len(logits_V), max_seq_length=max_seq_length)
        self._logits_V = logits_V

    def hidden(self, idx: Tensor, input_pos: Tensor | None = None, *, cache: KVCache, slots: Tensor) -> Tensor:
        return self._logits_V.expand(*idx.shape, -1)


def continuing(scripts: Mapping[tuple[int, ...], Sequence[int]], *, otherwise: int = 0) -> Script:
    """Return the script that continues each prompt with its own tokens; off the script it says `otherwise`."""

    def script(tokens: list[int]) -> int:
        for prompt, output in scripts.items():
            emitted = tokens[len(prompt) :]
            if tokens[: len(prompt)] == list(prompt) and emitted == list(output[: len(emitted)]):
                return output[len(emitted)] if len(emitted) < len(output) else otherwise
        return otherwise

    return script


class ScriptedProposer(Proposer):
    """Proposes so that exactly so many tokens are accepted.

    Args:
        truth: what the target will say after the tokens so far.
        pattern: (request id, round from 0, limit) to (draft tokens, how many of them are right).
    """

    def __init__(self, truth: Callable[[list[int]], int], pattern: Callable[[str, int, int], tuple[int, int]]) -> None:
        self._truth, self._pattern = truth, pattern
        self._rounds: dict[str, int] = {}
        self.released: list[str] = []

    def propose(self, rows: Sequence[DraftRow], limits: Sequence[int]) -> Proposal:
        drafts = []
        for row, limit in zip(rows, limits, strict=True):
            count = self._rounds.get(row.id, 0)
            self._rounds[row.id] = count + 1
            drafted, right = self._pattern(row.id, count, limit)
            tokens = list(row.tokens)
            for position in range(min(drafted, limit)):
                token = self._truth(tokens)
                tokens.append(token if position < right else (token + 1) % 2**5)
            drafts.append(tokens[len(row.tokens) :])
        return Proposal.of(drafts)

    def release(self, row: DraftRow) -> None:
        self._rounds.pop(row.id, None)
        self.released.append(row.id)


class Spy:
    """Passes everything on to a model and writes down what it was fed.

    Attributes:
        calls: (idx, input_pos, slots) of every forward, as lists.
        before: called with the cache before every forward.
    """

    def __init__(self, inner: Any, *, before: Callable[[KVCache, Tensor, Tensor], None] | None = None) -> None:
        self._inner, self._before = inner, before
        self.calls: list[tuple[list[list[int]], list[list[int]], list[int]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def hidden(self, idx: Tensor, input_pos: Tensor, *, cache: KVCache, slots: Tensor, **more: Any) -> Tensor:
        self.calls.append((idx.tolist(), input_pos.tolist(), slots.tolist()))
        if self._before is not None:
            self._before(cache, input_pos, slots)
        return self._inner.hidden(idx, input_pos, cache=cache, slots=slots, **more)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(rows, width) of every forward."""
        return [(len(idx), len(idx[0])) for idx, _, _ in self.calls]

    def fed(self, slot: int) -> list[list[tuple[int, int]]]:
        """Return for every forward that fed the slot its (position, token) pairs, padding's repeats left out."""
        forwards = []
        for idx, positions, slots in self.calls:
            for row, owner in enumerate(slots):
                if owner == slot:
                    pairs = list(zip(positions[row], idx[row], strict=True))
                    forwards.append([pair for i, pair in enumerate(pairs) if pair not in pairs[:i]])
        return forwards


class Letters:
    """A detokeniser: a token's text is looked up, or is its letter; it may hold back and may fail.

    Args:
        texts: the text of some tokens.
        held: tokens whose text comes out with the next token or the flush.
        fails_at: the token at which it raises.
    """

    def __init__(
        self, texts: Mapping[int, str] | None = None, *, held: Iterable[int] = (), fails_at: int | None = None
    ) -> None:
        self._texts, self._held, self._fails_at = dict(texts or {}), frozenset(held), fails_at
        self._pending = ""

    def push(self, token_id: int) -> str:
        if token_id == self._fails_at:
            raise RuntimeError(f"no text for token {token_id}")
        text = self._pending + self._texts.get(token_id, chr(97 + token_id % 26))
        self._pending = text if token_id in self._held else ""
        return "" if token_id in self._held else text

    def flush(self) -> str:
        text, self._pending = self._pending, ""
        return text
