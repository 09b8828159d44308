"""From what a user gives beside a prompt (params, or keywords) to one SamplingParams for each prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from litspec.engine.params import ParameterError, SamplingParams

_LITGPT_FORMS = {
    "stream": "call llm.stream(…) instead",
    "return_as_token_ids": "read completion.token_ids instead",
    "sys_prompt": 'call llm.chat([{"role": "system", …}, …]) instead',
}
T = TypeVar("T")


def one_params(params: Any, given: Mapping[str, Any]) -> SamplingParams:
    """Return the params of a single prompt.

    Raises:
        ParameterError: both forms were given, or one that cannot be used.
    """
    for name, form in _LITGPT_FORMS.items():
        if name in given:
            raise ParameterError(f"{name}= is LitGPT's form; {form}", param=name)
    if params is None:
        return SamplingParams(**given)
    if given:
        raise ParameterError(f"params and {', '.join(given)} were both given; allowed: one of the two", param="params")
    if not isinstance(params, SamplingParams):
        raise ParameterError(
            f"params was {type(params).__name__}; allowed: SamplingParams(…), and for a list of prompts a list with "
            "one for each; or its fields as keywords",
            param="params",
        )
    return params


def params_for(params: Any, given: Mapping[str, Any], num_prompts: int) -> list[SamplingParams]:
    """Return the params of each of a list of prompts: one for all, or one of each.

    Raises:
        ParameterError: as `one_params`, or the two lists differ in length.
    """
    if given or not isinstance(params, (list, tuple)):
        return [one_params(params, given)] * num_prompts
    if len(params) != num_prompts:
        raise ParameterError(
            f"{len(params)} params were given for {num_prompts} prompts; give one for each, or one for all",
            param="params",
        )
    return [at_index(index, lambda each=each: one_params(each, {})) for index, each in enumerate(params)]


def at_index(index: int | None, check: Callable[[], T]) -> T:
    """Return check(), putting the index of a list's element before its error; None is no list."""
    try:
        return check()
    except ParameterError as error:
        if index is None:
            raise
        raise ParameterError(f"prompt {index}: {error}", param=error.param) from None


def check_one_answer(params: SamplingParams) -> None:
    """Raise ParameterError where several answers are asked of what gives one."""
    if params.n != 1:
        raise ParameterError(
            f"n was {params.n}; this call gives one answer, so allowed: 1 (LLM.generate and chat give n)", param="n"
        )
