"""ChatTemplate: messages to the one text that a chat model was trained on.

A template comes with the checkpoint, so it is somebody else's program: it runs in jinja2's immutable sandbox, sees
plain copies of the messages, and whatever goes wrong in it is a ChatTemplateError. The surroundings (whitespace rules,
loop controls, `raise_exception`, `strftime_now`, `tojson`, the `generation` block) are those that templates on the
Hugging Face hub are written for.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from litspec.model.tokenizer import Tokenizer


class ChatTemplateError(ValueError):
    """Messages that a template refuses, or a template that does not work; the message is the template's own."""


class ChatTemplate:
    """A model's chat template.

    Args:
        template: the jinja2 source.
        bos_token: spelling of the begin-of-text token, as the template's `bos_token`.
        eos_token: spelling of the end-of-text token, as the template's `eos_token`.

    Raises:
        ChatTemplateError: the source is no valid template.
    """

    def __init__(self, template: str, *, bos_token: str | None = None, eos_token: str | None = None) -> None:
        self.bos_token = bos_token or ""
        self.eos_token = eos_token or ""
        try:
            self._template = _environment().from_string(template)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the model's chat template is broken: {error}") from None

    @classmethod
    def for_tokenizer(cls, template: str, tokenizer: Tokenizer) -> ChatTemplate:
        """Return a template with the BOS and EOS of `tokenizer`."""
        bos, eos = (
            None if token_id is None else tokenizer.id_to_piece(token_id)
            for token_id in (tokenizer.bos_token_id, tokenizer.eos_token_id)
        )
        return cls(template, bos_token=bos, eos_token=eos)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt text for `messages`.

        Args:
            messages: mappings with `role` and `content`, both text; further keys are the template's business.
            add_generation_prompt: end with the opening of the assistant's answer.
            variables: further variables of the template (`enable_thinking`, `tools`, …).

        Raises:
            ChatTemplateError: malformed messages, or the template refuses them (with its message).
        """
        check_messages(messages)
        try:
            return self._template.render(
                {
                    "tools": None,
                    "documents": None,
                    **(variables or {}),
                    "messages": [copy.deepcopy(dict(message)) for message in messages],
                    "add_generation_prompt": add_generation_prompt,
                    "bos_token": self.bos_token,
                    "eos_token": self.eos_token,
                }
            )
        except _RaisedByTemplate as error:
            raise ChatTemplateError(str(error)) from None
        except Exception as error:  # a template can fail in any way that Python can
            raise ChatTemplateError(
                f"the model's chat template does not take these messages ({type(error).__name__}: {error}); "
                "check their roles and order, or give a ready-made prompt instead"
            ) from None


def check_messages(messages: Any) -> None:
    """Raise ChatTemplateError unless `messages` is a list of mappings with a text `role` and a text `content`."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ChatTemplateError(
            f"messages were {type(messages).__name__}; allowed: a list of {{'role': text, 'content': text}}"
        )
    if not messages:
        raise ChatTemplateError("messages were empty; allowed: a list of at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ChatTemplateError(
                f"message {index} was {type(message).__name__}; allowed: a mapping with 'role' and 'content'"
            )
        for name in ("role", "content"):
            if name not in message:
                raise ChatTemplateError(f"message {index} has no {name!r}; each message needs 'role' and 'content'")
            if not isinstance(message[name], str):
                given = type(message[name]).__name__
                raise ChatTemplateError(f"message {index} has a {name!r} of type {given}; allowed: text")


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the prompt ids of `messages`, with one BOS where template, tokenizer or both would put it."""
    text = template.render(messages, variables=variables)
    starts_with_bos = bool(template.bos_token) and text.startswith(template.bos_token)
    return tokenizer.encode(text, add_bos=not starts_with_bos)


class _RaisedByTemplate(jinja2.TemplateError):
    pass


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance's set)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: Any) -> NoReturn:
    raise _RaisedByTemplate(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as it is: jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
