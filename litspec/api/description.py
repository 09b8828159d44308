"""What is loaded, as facts for programs and as one line for people; the line is what a server prints at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from litspec.api.config import EngineConfig
    from litspec.api.memory import MemoryPlan
    from litspec.engine.engine import Engine


def facts_of(name: str, engine: Engine, config: EngineConfig, plan: MemoryPlan | None) -> dict[str, Any]:
    """Return names, sizes and shapes, JSON-ready; names that end in `_bytes` are numbers, `memory` says them readably.

    Args:
        name: the model, as the user gave it.
        plan: None for an engine that was put together without one.
    """
    facts = {
        "model": name,
        "draft": config.draft or "none",
        "num_draft_tokens": config.num_draft_tokens if config.is_drafting else 0,
        "batching": config.batching,
        "prefix_reuse": config.prefix_reuse,
        "dtype": str(engine.cache.k[0].dtype).removeprefix("torch."),
        "device": str(engine.target.device),
        "compile": config.compile,
        "slots": engine.cache.num_slots,
        "max_seq_length": engine.target.max_seq_length,
        "row_buckets": list(engine.shapes.row_buckets),
        "widths": [*engine.shapes.step_widths, *engine.shapes.chunk_widths],
        "compiled_shapes": engine.compiled_shapes,
    }
    return facts if plan is None else {**facts, "memory": str(plan), **plan.to_dict()}


def one_line(facts: dict[str, Any]) -> str:
    """Return facts as a line; bytes are left to `memory`, which says them readably."""
    shown = {name.replace("_", " "): value for name, value in facts.items() if not name.endswith("_bytes")}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
