"""From runs to figures: medians, percentiles and paired ratios. Pure arithmetic; no model, no clock.

A pair is two arms in the same repeat, which ran side by side, so that what drifts on the machine met both alike; a
ratio is the median of the pairs' own ratios.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from litspec.bench.drive import Run
from litspec.bench.workload import AUTO, OFF, Arm, arm_name


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which so many percent lie, on the straight line between the two nearest."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Spread:
    """Where values lie."""

    mean: float
    median: float
    p95: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Return the spread of the values that are known; None where none is."""
        known = [value for value in values if value is not None]
        return cls(mean(known), median(known), percentile(known, 95)) if known else None


@dataclass(frozen=True)
class ArmFigures:
    """One arm at one level; times are over all requests of all repeats, the rest are medians over the repeats.

    Attributes:
        tokens_per_s: output tokens a second of the arm's own time, prompts included in it.
        decode_tokens_per_s: the same of the steps in which no prompt was read, which are all that the arms differ in.
        runs: tokens_per_s of each repeat.
        decode_runs: decode_tokens_per_s of each repeat.
        ttft_s: from when a request was due to its first token.
        tpot_s: a token after the first.
        longest_gap_s: between two moments at which one request was brought tokens.
        mean_in_flight: requests that waited or ran, averaged over time.
        acceptance_length: tokens of a round, bonus included.
    """

    tokens_per_s: float | None
    decode_tokens_per_s: float | None
    runs: list[float | None]
    decode_runs: list[float | None]
    ttft_s: Spread | None
    tpot_s: Spread | None
    longest_gap_s: float | None
    mean_in_flight: float
    acceptance_length: float | None

    @classmethod
    def of(cls, runs: Sequence[Run]) -> ArmFigures:
        """Sum up the repeats of an arm."""
        timelines = [timeline for run in runs for timeline in run.timelines]
        gaps = [t.longest_gap_s for t in timelines if t.longest_gap_s is not None]
        return cls(
            tokens_per_s=known_median(run.tokens_per_s for run in runs),
            decode_tokens_per_s=known_median(run.decode_tokens_per_s for run in runs),
            runs=[run.tokens_per_s for run in runs],
            decode_runs=[run.decode_tokens_per_s for run in runs],
            ttft_s=Spread.of(t.ttft_s for t in timelines),
            tpot_s=Spread.of(t.tpot_s for t in timelines),
            longest_gap_s=max(gaps, default=None),
            mean_in_flight=median(run.mean_in_flight for run in runs),
            acceptance_length=known_median(run.acceptance_length for run in runs),
        )


@dataclass(frozen=True)
class LevelFigures:
    """One level: its arms, and how they compare."""

    name: str
    kind: str
    value: float
    num_requests: int
    arms: Mapping[Arm, ArmFigures]

    @property
    def best_fixed(self) -> Arm | None:
        """The number of draft tokens, off apart, with the highest median throughput."""
        return self._best([arm for arm in self.arms if arm not in (AUTO, OFF)])

    @property
    def best_other(self) -> Arm | None:
        """The arm, auto apart, with the highest median throughput."""
        return self._best([arm for arm in self.arms if arm != AUTO])

    def ratio(self, arm: Arm | None, other: Arm | None) -> float | None:
        """Return the median over the repeats of one arm's throughput over another's; None without both."""
        if arm is None or other is None or arm not in self.arms or other not in self.arms:
            return None
        return _paired(self.arms[arm].runs, self.arms[other].runs)

    @property
    def decode_ratio(self) -> float | None:
        """Auto over the best other arm in the steps in which no prompt was read, the best being the best in these."""
        others = [arm for arm in self.arms if arm != AUTO]
        best = max(others, key=lambda arm: self.arms[arm].decode_tokens_per_s or 0.0, default=None)
        if best is None or AUTO not in self.arms:
            return None
        return _paired(self.arms[AUTO].decode_runs, self.arms[best].decode_runs)

    def _best(self, arms: Sequence[Arm]) -> Arm | None:
        return max(arms, key=lambda arm: self.arms[arm].tokens_per_s or 0.0, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready values, the ratios first."""
        best_fixed, best_other = self.best_fixed, self.best_other
        return {
            "level": self.name,
            "kind": self.kind,
            "value": self.value,
            "requests": self.num_requests,
            "auto_over_off": self.ratio(AUTO, OFF),
            "auto_over_best_fixed": self.ratio(AUTO, best_fixed),
            "auto_over_best": self.ratio(AUTO, best_other),
            "auto_over_best_decoding": self.decode_ratio,
            "best_fixed": None if best_fixed is None else arm_name(best_fixed),
            "best": None if best_other is None else arm_name(best_other),
            "arms": {arm_name(arm): asdict(figures) for arm, figures in self.arms.items()},
        }


def _paired(runs: Sequence[float | None], others: Sequence[float | None]) -> float | None:
    pairs = zip(runs, others, strict=True)
    return known_median(a / b if a is not None and b else None for a, b in pairs)


def known_median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
