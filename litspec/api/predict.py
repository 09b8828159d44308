"""The body of `POST /predict`, read strictly: JSON in, an `Order` out.

Knows no HTTP framework and no tokenizer. Whatever can be said about a body without the model is said here, so that a
bad one never reaches a worker; the worker says the rest (an empty prompt, one that is too long, a template's errors).
"""

from __future__ import annotations

import difflib
import json
from typing import Any

from litspec.api.messages import Failure, Order, RequestError
from litspec.api.params import check_one_answer
from litspec.engine.params import ParameterError, SamplingParams

MAX_DEPTH = 64
OWN_FIELDS = ("prompt", "messages", "stream")


def parse_predict(body: bytes) -> Order:
    """Read one body.

    Raises:
        RequestError: a 400 that names what was given, what is allowed, and the field at fault.
    """
    fields = parse_object(body)
    check_fields(fields, (*OWN_FIELDS, *SamplingParams.model_fields))
    prompt = _take_prompt(fields)
    stream = fields.pop("stream", False)
    if not isinstance(stream, bool):
        raise bad_request(f"stream was {_show(stream)}; allowed: true or false", "stream")
    try:
        params = SamplingParams(**fields)
        check_one_answer(params)
        return Order(prompt, params, stream)
    except ParameterError as error:
        raise bad_request(str(error), error.param) from None


def parse_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object; refuses NaN, Infinity and text that is not valid Unicode."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise bad_request(
            "the body holds text that is not valid Unicode; allowed: UTF-8, surrogates in pairs"
        ) from None
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}") from None
    if _depth(value) > MAX_DEPTH:
        raise bad_request(f"the body is nested more than {MAX_DEPTH} deep; allowed: up to that")
    if not isinstance(value, dict):
        raise bad_request(f"the body was {_show(value)}; allowed: one JSON object, with `prompt` or `messages`")
    return value


def check_fields(fields: dict[str, Any], known: tuple[str, ...]) -> None:
    """Refuse the first field that is not known, naming the nearest that is."""
    for name in fields:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}? " if nearest else ""
            raise bad_request(f"unknown field {_show(name)}; {hint}allowed: {', '.join(known)}", name)


def bad_request(message: str, param: str | None = None) -> RequestError:
    """Return the error that becomes a 400."""
    return RequestError(Failure(400, message, param))


def _take_prompt(fields: dict[str, Any]) -> str | list[int] | list[dict[str, Any]]:
    if ("prompt" in fields) == ("messages" in fields):
        given = "both prompt and messages were given" if "prompt" in fields else "neither prompt nor messages was given"
        raise bad_request(f"{given}; allowed: exactly one of them", "prompt")
    if "messages" in fields:
        return _check_messages(fields.pop("messages"))
    prompt = fields.pop("prompt")
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
        return prompt
    raise bad_request(
        f"prompt was {_show(prompt)}; allowed: text, or a list of token ids (one prompt a request)", "prompt"
    )


def _check_messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise bad_request(f"messages was {_show(messages)}; allowed: a list of at least one message", "messages")
    for index, message in enumerate(messages):
        fits = isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not fits:
            raise bad_request(
                f"messages[{index}] was {_show(message)}; "
                'allowed: an object with the strings `role` and `content`, as {"role": "user", "content": "Hi"}',
                f"messages[{index}]",
            )
    return messages


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _depth(value: Any) -> int:
    """Return how deep lists and objects are nested in a JSON value."""
    depth, level = 0, [value]
    while level := [item for outer in level if isinstance(outer, (list, dict)) for item in _items(outer)] or None:
        depth += 1
    return depth


def _items(outer: list[Any] | dict[str, Any]) -> list[Any]:
    return list(outer.values()) if isinstance(outer, dict) else outer


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:100]}…"
