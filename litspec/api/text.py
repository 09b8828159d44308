"""From what a user gives (text, token ids or messages) to prompt ids.

Text is tokenised as it stands, with the model's own BOS; ids are used untouched; messages go through the chat template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from litspec.engine.params import ParameterError
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


def is_prompt_list(prompt: Any) -> bool:
    """Whether what a user gave is a list of prompts, not one prompt; an empty list is one."""
    if not isinstance(prompt, (list, tuple)) or is_messages(prompt):
        return False
    return not prompt or any(isinstance(item, (str, list, tuple, Mapping)) for item in prompt)


def check_size(prompt: Any, tokenizer: Tokenizer, max_tokens: int) -> None:
    """Raise ParameterError for a text so long that tokenising it, only to refuse it, would hold everybody up.

    A text of n bytes has at least n over the longest token's bytes tokens; it is refused here from four times what
    could fit, which leaves room for tokenizers that drop or merge characters.
    """
    texts = [m.get("content") for m in prompt if isinstance(m, Mapping)] if is_messages(prompt) else [prompt]
    size = sum(len(text) for text in texts if isinstance(text, str))
    if size > 4 * max_tokens * tokenizer.longest_token:
        raise ParameterError(
            f"the prompt has {size} characters; allowed: up to {max_tokens - 1} tokens, which are never more than "
            f"{max_tokens * tokenizer.longest_token} characters. Shorten it, or load with a larger max_seq_length",
            param="messages" if is_messages(prompt) else "prompt",
        )


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
    raise ParameterError(_what_is_wrong(prompt), param="prompt")


def _what_is_wrong(prompt: Any) -> str:
    if isinstance(prompt, (list, tuple)):
        index = next(i for i, item in enumerate(prompt) if not is_token_ids([item]))
        return f"prompt token {index} was {_shown(prompt[index])}; allowed in a list of token ids: Python integers"
    return f"the prompt was {_shown(prompt)}; allowed: text, a list of token ids, or a list of messages"


def _shown(value: Any) -> str:
    kind = type(value).__name__
    if hasattr(value, "tolist"):  # numpy's and torch's arrays and numbers
        return f"{kind} (convert it with .tolist())"
    return kind if isinstance(value, (bytes, list, tuple, dict)) else f"{kind} {value!r:.40}"


def plain_ids(prompt: Any, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a prompt that must not be a chat.

    Raises:
        ParameterError: as `prompt_ids`, or it is a chat.
    """
    if isinstance(prompt, Mapping) or is_messages(prompt):
        raise ParameterError("the prompt was a list of messages; call chat(messages) for them", param="prompt")
    return prompt_ids(prompt, tokenizer, None)


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
