"""A request answered by plain loops: no cache, no batch, no tensors after the logits.

Every token feeds the whole text again and chooses by lists of numbers. Of the package it uses the model and, through
`tests/ops/slow_sample.py`, the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from litspec.engine.request import Request
from litspec.model.gpt import GPT
from tests.ops.slow_sample import token_by_loop

_MASK = 2**64 - 1


@dataclass
class SlowAnswer:
    """What a request is answered; logprobs are (of the token, of the best ones by id)."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    logprobs: list[tuple[float, dict[int, float]]] = field(default_factory=list)
    prompt_logprobs: list[tuple[float, dict[int, float]]] = field(default_factory=list)


@torch.inference_mode()
def slow_answer(request: Request, gpt: GPT) -> SlowAnswer:
    """Answer a request."""
    params, prompt, answer = request.params, request.prompt_ids, SlowAnswer()
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else request.eos_token_ids)}
    fed = gpt(torch.tensor([prompt]))[0].double()
    if params.prompt_logprobs is not None:
        answer.prompt_logprobs = [
            _logprob(fed[i].tolist(), prompt[i + 1], params.prompt_logprobs) for i in range(len(prompt) - 1)
        ]
    while not answer.finish_reason:
        text = [*prompt, *answer.token_ids]
        logits = gpt(torch.tensor([text]))[0, -1].double().tolist()
        token = token_by_loop(
            torch.tensor(_edited(logits, request, answer.token_ids, ends), dtype=torch.float64),
            params.temperature,
            params.top_k,
            params.top_p,
            _seed_of_choice(params.seed or 0, request.choice),
            params.min_p,
            position=len(text),
        )
        answer.token_ids.append(token)
        if params.logprobs is not None:
            answer.logprobs.append(_logprob(logits, token, params.logprobs))
        if token in ends or any(stop in _letters(answer.token_ids[params.min_tokens :]) for stop in params.stop):
            answer.finish_reason = "stop"
        elif len(answer.token_ids) == params.max_new_tokens or len(text) + 1 == gpt.max_seq_length:
            answer.finish_reason = "length"
    return answer


def _edited(logits: list[float], request: Request, output: list[int], ends: set[int]) -> list[float]:
    """Return the scores that a token is chosen by: penalties, then bias, then bans."""
    params, context = request.params, [*request.prompt_ids, *output]
    scores = []
    for token, score in enumerate(logits):
        if token in context:
            score = score / params.repetition_penalty if score > 0 else score * params.repetition_penalty
        if token in output:
            score -= params.presence_penalty + params.frequency_penalty * output.count(token)
        score += (params.logit_bias or {}).get(token, 0.0)
        for word in request.bad_words_ids:
            if [*context, token][-len(word) :] == list(word):
                score = -math.inf
        scores.append(-math.inf if token in ends and len(output) < params.min_tokens else score)
    return scores


def _logprob(logits: list[float], token: int, num_top: int) -> tuple[float, dict[int, float]]:
    """Return the log-probability of a token, and those of the best ones."""
    top = max(logits)
    total = top + math.log(math.fsum(math.exp(x - top) for x in logits))
    best = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:num_top]
    return logits[token] - total, {i: logits[i] - total for i in best}


def _letters(token_ids: list[int]) -> str:
    return "".join(chr(97 + token % 26) for token in token_ids)


def _seed_of_choice(seed: int, choice: int) -> int:
    """Return the seed of one of several answers: choice 0 has the seed itself, others a SplitMix64 output of it."""
    if choice == 0:
        return seed
    x = (seed + choice * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return (x ^ (x >> 31)) & (2**63 - 1)
