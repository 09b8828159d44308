"""How long something takes on the machine that it runs on."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from litspec.draft.proposer import DraftCost


def least_seconds(run: Callable[[], Tensor], *, num_tries: int = 1) -> float:
    """Return the seconds of the fastest of some runs, each until its result is on the host.

    Other work on the machine can only make a run slower, so the least is nearest to the truth.
    """
    seconds = []
    for _ in range(num_tries):
        started = time.perf_counter()
        run().cpu()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def drafting_cost(draft: Callable[[int], Tensor], catch_up: Callable[[], Tensor] | None = None) -> DraftCost:
    """Time a draft of one token and of three, and a chunk that catches up where there is one."""
    first_s, third_s = (least_seconds(lambda n=n: draft(n), num_tries=2) for n in (1, 3))
    chunk_s = 0.0 if catch_up is None else least_seconds(catch_up, num_tries=2)
    return DraftCost(first_s, max(0.0, third_s - first_s) / 2, chunk_s)
