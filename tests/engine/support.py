"""Tiny models, ways to run requests through an engine, and the two references that everything is compared with.

`plain` is the engine at its simplest: one slot, no proposer, eager. `recompute` is no engine at all: it feeds the whole
text again for every token, without a cache, and draws with `batched_sample`; it shares neither cache, slots, windows
nor shortlist with what is tested. Models are float64, so that tokens must be equal and not nearly so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache as remember
from typing import Any, Literal

import torch

from litspec.draft import EarlyExitProposer, ModelProposer, NgramProposer, Proposer
from litspec.engine.emission import Emission
from litspec.engine.engine import Engine
from litspec.engine.options import MAX_AUTO_DRAFT_TOKENS, EngineOptions
from litspec.engine.params import SamplingParams
from litspec.engine.request import Completion, Request
from litspec.engine.speculative import Target
from litspec.model.compile import CompiledGPT, CompileMode
from litspec.model.config import Config
from litspec.model.debug import random_tensors
from litspec.model.decode import Sampling, batched_sample
from litspec.model.gpt import GPT
from litspec.model.placement import empty_modules
from litspec.model.window import Shapes

CONTEXT = 256
TINY = Config(
    name="tiny",
    n_layer=3,
    n_head=4,
    n_query_groups=2,
    head_size=8,
    n_embd=32,
    intermediate_size=48,
    vocab_size=96,
    block_size=CONTEXT,
)
DRAFTS = ("none", "ngram", "model", "self", "early-exit:1", "early-exit:3")
ODD_SHAPES = Shapes((3, 5, 8), (1, 3, 9), (5, 40))
"""Shapes that are no powers of two; the widest step holds 8 draft tokens."""


@remember
def tiny_gpt(*, seed: int = 0, context: int | None = None, dtype: torch.dtype = torch.float64, **changes: Any) -> GPT:
    """Return a random model with TINY's config but for `changes`; fewer layers of a seed are its first layers."""
    config = replace(TINY, **changes)
    with empty_modules(torch.device("cpu"), dtype), torch.inference_mode():
        gpt = GPT(config, max_seq_length=context)
        gpt.load(random_tensors(config, seed=seed))
    return gpt


def tiny_model(*, mode: CompileMode = "none", **options: Any) -> CompiledGPT:
    """Return `tiny_gpt` as the engine takes it."""
    return CompiledGPT(tiny_gpt(**options), mode)


def make_engine(
    target: Target | None = None,
    *,
    draft: str | Proposer | CompiledGPT | None = None,
    num_draft_tokens: int | Literal["auto"] = 4,
    slots: int = 8,
    shapes: Shapes | None = None,
    **options: Any,
) -> Engine:
    """Put an engine together; `draft` is one of DRAFTS, a draft model or a proposer; `options` are EngineOptions'."""
    target = target or tiny_model()
    widest = MAX_AUTO_DRAFT_TOKENS if num_draft_tokens == "auto" else num_draft_tokens
    shapes = shapes or Shapes.plan(max_batch_size=slots, num_draft_tokens=widest)
    kv = target.new_cache(slots)
    if draft == "model":
        draft = tiny_model(n_layer=2)
    elif draft == "self":
        draft = tiny_model()
    elif draft == "ngram":
        draft = NgramProposer()
    elif isinstance(draft, str) and draft.startswith("early-exit:"):
        assert isinstance(target, CompiledGPT)
        draft = EarlyExitProposer(target, kv, num_layers=int(draft[-1]), shapes=shapes)
    if isinstance(draft, CompiledGPT) or hasattr(draft, "new_cache"):
        draft = ModelProposer(draft, num_slots=slots, shapes=shapes, vocab_size=target.vocab_size)
    proposer = None if draft == "none" else draft
    return Engine(
        target,
        kv,
        shapes=shapes,
        proposer=proposer,
        num_draft_tokens=num_draft_tokens,
        options=EngineOptions(**options),
    )


def ask(
    request_id: str,
    prompt: Iterable[int],
    *,
    eos: Iterable[int] = (),
    text: Any = None,
    choice: int = 0,
    bad: Iterable[Sequence[int]] = (),
    **params: Any,
) -> Request:
    """Make a request: greedy unless a temperature is given; `bad` are bad words as token ids."""
    params = {"temperature": 0.0, "seed": 0, **params}
    return Request(request_id, list(prompt), SamplingParams(**params), frozenset(eos), text, choice, [*bad])


def same(request: Request, *, request_id: str | None = None, text: Any = None) -> Request:
    """Return a fresh copy of a request that has not run."""
    return Request(
        request_id or request.id,
        list(request.prompt_ids),
        request.params,
        request.eos_token_ids,
        text,
        request.choice,
        request.bad_words_ids,
    )


def run(engine: Engine, requests: Sequence[Request], *, max_steps: int = 10_000) -> list[Completion]:
    """Run copies of requests together and return their completions in order."""
    return [last.completion for _, last in run_streams(engine, requests, max_steps=max_steps)]


def run_streams(
    engine: Engine, requests: Sequence[Request], *, max_steps: int = 10_000
) -> list[tuple[list[Emission], Any]]:
    """Run copies of requests together; return for each its emissions and the last one, in order."""
    for request in requests:
        engine.add_request(same(request, text=request.detokenizer))
    streams: dict[str, list[Emission]] = {request.id: [] for request in requests}
    for _ in range(max_steps):
        if not engine.has_active_requests():
            break
        for emission in engine.step():
            streams[emission.request.id].append(emission)
    assert not engine.has_active_requests(), f"still running after {max_steps} steps"
    return [(streams[request.id], streams[request.id][-1]) for request in requests]


def plain(request: Request, target: Target | None = None) -> list[int]:
    """Return the tokens of a request that runs alone: one slot, no proposer, no compiler."""
    engine = make_engine(target, slots=1, num_draft_tokens=0, shapes=Shapes((1,), (1,), (256,)))
    return run(engine, [request])[0].token_ids


def recompute(request: Request, gpt: GPT | None = None) -> list[int]:
    """Return the tokens of a request by feeding its whole text again for every token."""
    p = request.params
    key = (tuple(request.prompt_ids), p.max_new_tokens, p.temperature, p.top_k, p.top_p, p.seed)
    return list(_recompute(gpt or tiny_gpt(), *key, request.eos_token_ids if not p.ignore_eos else frozenset()))


@remember
@torch.inference_mode()
def _recompute(
    gpt: GPT,
    prompt: tuple[int, ...],
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int,
    eos: frozenset[int],
) -> tuple[int, ...]:
    sampling = Sampling.of([temperature], [top_k], [top_p], [seed])
    tokens = list(prompt)
    while len(tokens) < min(len(prompt) + max_new_tokens, gpt.max_seq_length):
        logits = gpt(torch.tensor([tokens]))[:, -1:]
        tokens.append(int(batched_sample(logits, torch.tensor([[len(tokens)]]), sampling)))
        if tokens[-1] in eos:
            break
    return tuple(tokens[len(prompt) :])


def random_prompt(length: int, *, seed: int, vocab_size: int = TINY.vocab_size) -> list[int]:
    """Return random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (length,), generator=generator).tolist()


def assert_idle(engine: Engine) -> None:
    """Assert that nothing is left of any request but what free slots hold for reuse."""
    scheduler = engine.scheduler
    assert not engine.has_active_requests() and scheduler.running == [] and scheduler.waiting == []
    assert scheduler.pool.num_free == scheduler.pool.num_slots
    held = [len(engine.prefixes.held(slot)) for slot in range(engine.cache.num_slots)]
    assert engine.cache.fed_S[: engine.cache.num_slots].tolist() == held
    assert engine.options.prefix_reuse or not any(held)
    assert engine.drafter.num_requests == 0 and not engine.num_followers
    if isinstance(engine.proposer, NgramProposer):
        assert engine.proposer.num_requests == 0
    if isinstance(engine.proposer, ModelProposer):
        assert all(have <= most for have, most in zip(engine.proposer.lengths, held, strict=True))
        assert engine.proposer.cache.fed_S[: engine.cache.num_slots].tolist() == engine.proposer.lengths
