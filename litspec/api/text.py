"""From what a user gives (text, token ids or messages) to prompt ids.

Text is tokenised as it stands, with the model's own BOS; ids are used untouched; messages go through the chat template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from litspec.engine.request import ParameterError
from litspec.model.chat_template import ChatTemplate, ChatTemplateError, encode_chat
from litspec.model.tokenizer import Tokenizer, TokenizerError

Messages = Sequence[Mapping[str, Any]]
Prompt = Union[str, Sequence[int], Messages]  # noqa: UP007  (evaluated at run time on Python 3.10)


def is_messages(prompt: Any) -> bool:
    """Whether a prompt is a chat: a list that starts with a mapping."""
    return isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], Mapping)


def is_token_ids(prompt: Any) -> bool:
    """Whether a prompt is a list of token ids (which may still be out of range); an empty list is one."""
    return isinstance(prompt, (list, tuple)) and all(isinstance(i, int) and not isinstance(i, bool) for i in prompt)


def prompt_ids(prompt: Any, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[int]:
    """Return the token ids of one prompt.

    Raises:
        ParameterError: it is none of the three, or the template refuses it; `param` is "prompt" or "messages".
    """
    try:
        if isinstance(prompt, str):
            return tokenizer.encode(prompt)
        if is_token_ids(prompt):
            return list(prompt)
        if is_messages(prompt):
            return chat_ids(prompt, tokenizer, template)
    except TokenizerError as error:
        raise ParameterError(str(error), param="prompt") from None
    raise ParameterError(
        f"the prompt was {type(prompt).__name__}; allowed: text, a list of token ids, or a list of messages",
        param="prompt",
    )


def chat_ids(messages: Any, tokenizer: Tokenizer, template: ChatTemplate | None) -> list[int]:
    """Return the token ids of a chat.

    Raises:
        ParameterError: the model has no chat template, or the template refuses the messages.
    """
    if template is None:
        raise ParameterError("this model has no chat template; give a prompt as text instead", param="messages")
    try:
        return encode_chat(tokenizer, template, messages)
    except (ChatTemplateError, TokenizerError) as error:
        raise ParameterError(str(error), param="messages") from None
