"""The one decision what a round emits.

A round hands over a block of tokens for a row: accepted draft tokens and a bonus, or a prefill's first token. They
are taken one at a time, in order, and each is asked the same questions in the same order: does it end the text, does
it complete a stop string, is it the last that may be emitted. Text, token ids, usage, cache length and statistics all
follow from the answer, so they cannot disagree, and a token's fate does not depend on the block that it came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litspec.engine.request import Completion, FinishReason, Request
from litspec.model.logprobs import TokenLogprob


@dataclass(frozen=True)
class Emission:
    """What one step brought one request.

    Attributes:
        request: whose it is.
        token_ids: the tokens emitted; an end-of-text token is among them.
        text: the text that became certain.
        completion: the whole answer, on the request's last emission only.
    """

    request: Request
    token_ids: list[int]
    text: str
    completion: Completion | None = None


def emit(request: Request, block: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> Emission:
    """Take a block of tokens into a request, up to the one that ends it.

    Sets `finish_reason` where one does; a request whose own text handling fails ends with "error" at that token, and
    keeps what came before. Committing the cache length and giving back the slot are the caller's.

    Args:
        request: whose tokens they are.
        block: the tokens.
        logprobs: one for each token, where the request asked for them.
    """
    before = len(request.tokens)
    text = ""
    for token_id in block:
        request.tokens.append(token_id)
        try:
            text += _take(request, token_id)
        except Exception as fault:  # must not take the other rows down
            request.finish_reason, request.error = "error", f"{type(fault).__name__}: {fault}"
            text += request.stops.flush()
        if request.finish_reason is not None:
            break
    request.text += text
    emitted = request.tokens[before:]
    if request.logprobs is not None:
        request.logprobs += logprobs[: len(emitted)]
    return Emission(request, emitted, text)


def _take(request: Request, token_id: int) -> str:
    """Return the text that one more token makes certain, and end the request where it must."""
    params = request.params
    if token_id in request.end_token_ids:
        is_own = token_id in params.stop_token_ids and token_id not in request.eos_token_ids
        text = _push(request, token_id) if is_own and params.include_stop_str_in_output else ""
        return text + (_end(request, "stop") if request.finish_reason is None else "")
    text = _push(request, token_id)
    if request.finish_reason is None and request.num_remaining == 0:
        text += _end(request, "length")
    return text


def _push(request: Request, token_id: int) -> str:
    """Return the text that becomes certain with a token's; a stop string that it completes ends the request.

    Text that belongs to the first `min_tokens` tokens is not searched for stop strings.
    """
    if request.detokenizer is None:
        return ""
    return _search(request, request.detokenizer.push(token_id))


def _search(request: Request, text: str) -> str:
    """Return what is certain of the text so far; a stop string in it ends the request."""
    if request.num_emitted <= request.params.min_tokens:
        return text
    text = request.stops.push(text)
    if request.stops.is_matched:
        request.finish_reason = "stop"
    return text


def _end(request: Request, reason: FinishReason) -> str:
    """End a request and return the text that was held back; a stop string may still be completed by it."""
    request.finish_reason = reason
    if request.detokenizer is None:
        return ""
    text = _search(request, request.detokenizer.flush())
    return text if request.stops.is_matched else text + request.stops.flush()


def end_early(request: Request, reason: FinishReason, *, error: str | None = None) -> Emission:
    """End a request from outside its text (abort, timeout, error) and return its last emission."""
    text = request.stops.flush()
    request.text += text
    request.finish_reason, request.error = reason, error
    return Emission(request, [], text, request.completion())
