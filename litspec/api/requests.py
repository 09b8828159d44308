"""From token ids and parameters to the engine's requests, and from what they brought to what a caller gets.

A prompt that asks for n answers becomes n requests of one seed, each with noise of its own; the engine feeds their
prompt once where it reuses prefixes.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from litspec.api.loading import OpenedModel
from litspec.engine.params import ParameterError, SamplingParams
from litspec.engine.request import Completion, Request
from litspec.model.tokenizer import IncrementalDetokenizer, Tokenizer, TokenizerError

Answer = Completion | list[Completion]


def make_requests(
    opened: OpenedModel, ids: list[int], params: SamplingParams, *, request_id: str | None = None
) -> list[Request]:
    """Return a request for each of the `params.n` answers to a prompt.

    Args:
        opened: the model; it fills in what `params` leaves open.
        ids: the prompt.
        params: how to choose tokens.
        request_id: what the request is called; a random name by default. Further answers have their index added.

    Raises:
        ParameterError: a bad word has no tokens.
    """
    name = request_id or uuid.uuid4().hex
    complete = params.with_defaults(opened.generation_config).with_seed()
    bad_words_ids = spell_bad_words(opened.tokenizer, complete.bad_words)
    return [
        Request(
            id=name if choice == 0 else f"{name}#{choice}",
            prompt_ids=ids,
            params=complete,
            eos_token_ids=opened.eos_token_ids,
            detokenizer=IncrementalDetokenizer(opened.tokenizer, ids),
            choice=choice,
            bad_words_ids=bad_words_ids,
        )
        for choice in range(complete.n)
    ]


def spell_bad_words(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return each word's token ids as the tokenizer spells it at the beginning of a text and after a blank."""
    spellings: dict[tuple[int, ...], None] = {}
    for word in words:
        try:
            found = [tuple(tokenizer.encode(text, add_bos=False)) for text in (word, f" {word.lstrip()}")]
        except TokenizerError as error:
            raise ParameterError(f"bad_words holds {word!r}: {error}", param="bad_words") from None
        if not all(found):
            raise ParameterError(
                f"bad_words holds {word!r}, which has no tokens; allowed: words with text", param="bad_words"
            )
        spellings |= dict.fromkeys(found)
    return [list(spelling) for spelling in spellings]


def regroup(answers: Sequence[Completion | None], sizes: Sequence[int]) -> list[Any]:
    """Put answers in the place of their prompts: one as it is, several as a list."""
    rest = iter(answers)
    return [next(rest) if size == 1 else [next(rest) for _ in range(size)] for size in sizes]
