"""What can be said about a request once the model is known: whether it can run at all.

Whatever is wrong is one ParameterError that names the field, so that one bad request never reaches the batch.
"""

from __future__ import annotations

from collections.abc import Iterable

from litspec.engine.params import ParameterError, shown
from litspec.engine.request import Request


def check_request(request: Request, *, context: int, vocab_size: int, most_draft_tokens: int | None) -> None:
    """Raise ParameterError if a request can never run.

    Args:
        request: the request.
        context: tokens of prompt and answer together that fit.
        vocab_size: token ids are below this.
        most_draft_tokens: the most draft tokens that a window can hold; None where nothing drafts.
    """
    if not request.prompt_ids:
        raise ParameterError("the prompt has no tokens; allowed: at least one", param="prompt")
    if request.num_prompt_tokens >= context:
        raise ParameterError(
            f"the prompt has {request.num_prompt_tokens} tokens; allowed: up to {context - 1}, so that with one "
            f"new token it fits max_seq_length {context}. Shorten it, or load with a larger max_seq_length",
            param="prompt",
        )
    params = request.params
    check_token_ids(request.prompt_ids, vocab_size, "prompt token {}", "prompt")
    check_token_ids(params.stop_token_ids, vocab_size, "stop_token_ids[{}]", "stop_token_ids")
    check_token_ids(params.logit_bias or (), vocab_size, "a key of logit_bias", "logit_bias")
    for index, word in enumerate(request.bad_words_ids):
        check_token_ids(word, vocab_size, f"token {{}} of bad word {index}", "bad_words")
    words = {word[0] for word in request.bad_words_ids if len(word) == 1}
    if (words or params.min_tokens) and len(words | request.end_token_ids) >= vocab_size:
        field = "bad_words" if words else "stop_token_ids"
        raise ParameterError(
            f"{field} ban all {vocab_size} tokens of the vocabulary; allowed: leave at least one that does not end "
            "the text",
            param=field,
        )
    wanted = params.num_draft_tokens
    if wanted is not None and most_draft_tokens is not None and wanted > most_draft_tokens:
        raise ParameterError(
            f"num_draft_tokens was {wanted}; allowed: 0 (off) to {most_draft_tokens}, for which this engine has shapes",
            param="num_draft_tokens",
        )


def check_token_ids(token_ids: Iterable[int], vocab_size: int, place: str, param: str) -> None:
    """Raise ParameterError unless every id lies in [0, vocab_size); `place` says where the one at fault stands."""
    for index, token_id in enumerate(token_ids):
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise ParameterError(
                f"{place.format(index)} was {shown(token_id)}; allowed: ids from 0 to {vocab_size - 1}", param=param
            )
