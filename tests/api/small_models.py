"""What the LLM tests load: the debug model, and tiny random checkpoints on disk with a tokenizer of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from litspec import LLM, Completion
from litspec.api.llm import Chunk
from tests.model.tiny_checkpoints import edit_json, saved, tiny_model
from tests.model.tiny_tokenizers import byte_level, save

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    "<|part|>{{ m.content }}</s>{% endfor %}<|part|>"
)


def load_debug(**options: Any) -> LLM:
    """Return the debug model in float64, without compiling it."""
    return LLM.load("debug", **{"compile": "none", "dtype": "float64", **options})


def save_checkpoint(folder: Path, *, rows: int = 384, specials: list[str] | None = None, **changes: Any) -> Path:
    """Save a tiny random Llama with a byte-level tokenizer of 360 tokens and a chat template."""
    settings = {"max_position_embeddings": 256, **changes}
    saved(tiny_model("llama", vocab_size=rows, bos_token_id=0, eos_token_id=1, **settings), folder)
    backend = byte_level(**({} if specials is None else {"specials": specials}))
    save(folder, backend, {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE})
    return folder


def load_checkpoint(folder: Path, **options: Any) -> LLM:
    """Load a folder in float64, without compiling it."""
    return LLM.load(str(folder), **{"compile": "none", "dtype": "float64", **options})


def set_generation_config(folder: Path, **values: Any) -> None:
    """Write generation_config.json."""
    (folder / "generation_config.json").write_text("{}")
    edit_json(folder / "generation_config.json", **values)


def answers(completions: list[Completion]) -> list[tuple[str, list[int], str]]:
    """Return what must be equal between two runs."""
    return [(c.text, c.token_ids, c.finish_reason) for c in completions]


def is_idle(llm: LLM) -> bool:
    """Whether nothing of any request is left."""
    scheduler = llm.engine.scheduler
    driver = llm._driver
    leftovers = [driver._inboxes, driver._arrivals, driver._leavers, scheduler.running, scheduler.waiting]
    return not any(leftovers) and scheduler.pool.num_free == scheduler.pool.num_slots


def collected(llm: LLM, prompt: Any, stop_after: int | None = None, **given: Any) -> list[Chunk]:
    """Return the chunks of `astream`, the first `stop_after` of them."""

    async def collect() -> list[Chunk]:
        chunks: list[Chunk] = []
        stream = llm.astream(prompt, **given)
        async for chunk in stream:
            chunks.append(chunk)
            if len(chunks) == stop_after:
                await stream.aclose()  # pyright: ignore[reportAttributeAccessIssue]
                break
        return chunks

    return asyncio.run(collect())


def breaking(method: Callable[..., Any], *, at_call: int, error: BaseException) -> Callable[..., Any]:
    """Return a method that raises once, at its call of that number."""
    calls = 0

    def call(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at_call:
            raise error
        return method(*args, **more)

    return call
