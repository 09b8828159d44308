"""The workloads and the cost tables on which widths are chosen in tests and in tests/benchmarks/record_traces.py."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from litspec.draft import DraftCost
from litspec.engine.costs import CostTable
from tests.engine.rounds_of_traces import SHAPES, load_traces, measured_costs

CONCURRENCY = (1, 2, 4, 8)
RECORDED = ("ngram", "early-exit:10", "early-exit:22", "early-exit:28")
PACKED_MS = {
    1: {1: 3.6, 2: 3.7, 3: 4.0, 4: 4.4, 6: 5.9, 8: 7.4},
    2: {1: 3.9, 2: 4.6, 3: 5.9, 4: 7.4, 6: 10.5, 8: 13.5},
    4: {1: 4.6, 2: 7.4, 3: 10.4, 4: 13.0, 6: 18.5, 8: 24.0},
    8: {1: 7.8, 2: 12.0, 3: 16.0, 4: 20.3, 6: 30.0, 8: 40.0},
}
"""Steps with packed weights, where several rows pay for width; some measured, the others in line with those."""


class Case(NamedTuple):
    """Requests, how many of them run at once, and what rounds cost."""

    name: str
    traces: list[str]
    costs: CostTable
    rows: int
    is_free: bool


def recorded_cases() -> Iterator[Case]:
    """Yield the recorded answers with the measured cost table, greedy and sampled."""
    for draft in RECORDED:
        for temperature in (0.0, 0.8):
            for rows in CONCURRENCY:
                is_free = draft == "ngram"
                traces = load_traces(draft, temperature=temperature)
                costs = measured_costs(drafts=not is_free)
                yield Case(f"{draft}, temperature {temperature}, {rows} rows, measured", traces, costs, rows, is_free)


def other_machine_cases() -> Iterator[Case]:
    """Yield the recorded prompt lookup under cost tables of other machines."""
    tables = {
        "a step costs the same at any width": _table(lambda rows, width: 1.0),
        "each token costs the same": _table(lambda rows, width: float(rows * width)),
        "assumed": CostTable.assumed(SHAPES),
        "rows and width both cost": _table(_plane),
        "packed weights": _table(lambda rows, width: PACKED_MS[rows][width]),
    }
    for name, costs in tables.items():
        for rows in CONCURRENCY:
            yield Case(f"ngram, {rows} rows, {name}", load_traces("ngram"), costs, rows, is_free=True)
            greedy = load_traces("ngram", temperature=0.0)
            yield Case(f"ngram, temperature 0.0, {rows} rows, {name}", greedy, costs, rows, is_free=True)


def made_up_cases() -> Iterator[Case]:
    """Yield drafts that change for good, that differ from row to row, and that are all alike."""
    assumed = CostTable.assumed(SHAPES, DraftCost(0.15, 0.15, 0.3))
    patterns: dict[str, Callable[[int, int], float]] = {
        "good, then bad": lambda request, position: 0.9 if position < 100 else 0.1,
        "bad, then good": lambda request, position: 0.1 if position < 100 else 0.9,
        "good and bad rows": lambda request, position: 0.9 if request % 2 else 0.1,
        "always right": lambda request, position: 1.0,
        "never right": lambda request, position: 0.0,
        "mostly right": lambda request, position: 0.8,
    }
    for name, pattern in patterns.items():
        traces = [made_up_trace(pattern, request) for request in range(10)]
        for rows in (1, 8):
            yield Case(f"{name}, {rows} rows", traces, assumed, rows, is_free=False)


def made_up_trace(pattern: Callable[[int, int], float], request: int, num_tokens: int = 300) -> str:
    """Return the trace of a draft whose token at each position is right with a probability."""
    chance = random.Random(request)
    run, trace = 0, []
    for position in reversed(range(num_tokens)):
        run = min(run + 1, 7) if chance.random() < pattern(request, position) else 0
        trace.append(str(run))
    return "".join(reversed(trace))


def _plane(rows: int, width: int) -> float:
    return 1.0 + 1.3 * (rows - 1) / 7 + (1.4 + 1.7 * (rows - 1) / 7) * (width - 1) / 7


def _table(step: Callable[[int, int], float]) -> CostTable:
    return CostTable({(rows, width): step(rows, width) for rows in SHAPES.row_buckets for width in SHAPES.step_widths})
