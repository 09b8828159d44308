"""Shows what the load scenario measured: throughput, latency and the gap as tables, and a picture.

It computes nothing but the scale of a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from litspec.bench.figures import ArmFigures, LevelFigures, Spread
from litspec.bench.gap import GapFigures
from litspec.bench.load import LoadReport
from litspec.bench.workload import AUTO, OFF, Arm, arm_name

X_LABELS = {"closed": "requests in flight", "open": "arrivals per s"}


def load_tables(report: LoadReport) -> list[Table]:
    """Return the tables in the order in which they are printed."""
    tables = [throughput_table(report), latency_table(report)]
    return tables if report.gap is None else [*tables, gap_table(report.gap)]


def throughput_table(report: LoadReport) -> Table:
    """Return one row a level: output tokens a second of each arm, and how auto compares."""
    settings, machine = report.settings, report.machine
    worst = f"lowest in flight: {_number(report.worst_ratio, 2)}, decode {_number(report.worst_decode_ratio, 2)}"
    note = "decode: the steps that read no prompt"
    repeats = settings["workload"]["repeats"]
    measured = f"dtype {settings['dtype']}, medians of {repeats}; {machine['processor']}, {machine['threads']} threads"
    table = _table(
        f"{settings['model']}, draft {settings['draft']}: output tokens per s",
        f"{worst}; {report.sameness}\n{note}\n{measured}",
    )
    table.add_column("load", no_wrap=True)
    arms = list(report.levels[0].arms)
    for arm in arms:
        table.add_column(arm_name(arm), justify="right")
    for other in ("off", "fixed", "best"):
        table.add_column(f"auto ÷\n{other}", justify="right", no_wrap=True, style="bold" if other == "best" else "")
    table.add_column("÷ best,\ndecode", justify="right", no_wrap=True)
    for level in report.levels:
        fixed, best = level.best_fixed, level.best_other
        speeds = [_speed(level.arms[arm].tokens_per_s) for arm in arms]
        ratios = [_number(level.ratio(AUTO, OFF), 2), _against(level, fixed), _against(level, best)]
        table.add_row(level.name, *speeds, *ratios, _number(level.decode_ratio, 2))
    return table


def latency_table(report: LoadReport) -> Table:
    """Return a few rows a level: times and acceptance of each arm."""
    table = _table("times of a request: median and 95th percentile", None)
    table.add_column("load", no_wrap=True)
    table.add_column("", no_wrap=True)
    arms = list(report.levels[0].arms)
    for arm in arms:
        table.add_column(arm_name(arm), justify="right")
    for level in report.levels:
        rows = {
            "TTFT, s": [_number(_part(level.arms[arm].ttft_s, "median"), 2) for arm in arms],
            "  95 %": [_number(_part(level.arms[arm].ttft_s, "p95"), 2) for arm in arms],
            "TPOT, ms": [_number(_part(level.arms[arm].tpot_s, "median", 1e3), 0) for arm in arms],
            "  95 % ": [_number(_part(level.arms[arm].tpot_s, "p95", 1e3), 0) for arm in arms],
            "longest gap, s": [_number(level.arms[arm].longest_gap_s, 2) for arm in arms],
            "in flight": [_number(level.arms[arm].mean_in_flight, 1) for arm in arms],
            "tokens/round": [_number(level.arms[arm].acceptance_length, 2) for arm in arms],
        }
        for number, (name, values) in enumerate(rows.items()):
            table.add_row(level.name if number == 0 else "", name, *values, end_section=number == len(rows) - 1)
    return table


def gap_table(gap: GapFigures) -> Table:
    """Return what a long prompt does to the rows that decode, next to the bound."""
    title = f"{gap.num_rows} rows decode, a prompt of {gap.prompt_tokens} tokens arrives"
    table = _table(title, f"medians of {len(gap.runs)}; the bound is one chunk and one round")
    for heading in ("median\nround", "longest\nround", "longest\nchunk", "longest gap\nbefore", "longest gap\nafter"):
        table.add_column(heading, justify="right")
    for heading in ("bound", "within\nbound", "chunks", "empty\nsteps"):
        table.add_column(heading, justify="right")
    names = ("median_round_s", "longest_round_s", "longest_chunk_s", "longest_gap_before_s", "longest_gap_s", "bound_s")
    times = [f"{gap.median(name) * 1e3:.0f} ms" for name in names]
    verdict = "yes" if gap.is_within_bound else "NO"
    table.add_row(*times, verdict, f"{gap.median('num_chunks'):g}", str(gap.empty_steps))
    return table


def draw_load(report: LoadReport, file: Path) -> None:
    """Draw throughput, TPOT and TTFT of every arm against concurrency, and below against the rate."""
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports] (the extra `bench`)

    kinds = [kind for kind in X_LABELS if any(level.kind == kind for level in report.levels)]
    figure = Figure(figsize=(15, 4.2 * len(kinds)), layout="constrained")
    figure.suptitle(f"{report.settings['model']}, draft {report.settings['draft']}, by draft tokens in a round")
    for row, kind in enumerate(kinds):
        levels = sorted((level for level in report.levels if level.kind == kind), key=lambda level: level.value)
        axes = [figure.add_subplot(len(kinds), 3, 3 * row + column + 1) for column in range(3)]
        for number, arm in enumerate(levels[0].arms):
            _draw_arm(axes, levels, arm, color=f"C{number}")
        for panel, label in zip(axes, ("output tokens per s", "TPOT, ms", "TTFT, s"), strict=True):
            panel.set_xlabel(X_LABELS[kind])
            panel.set_ylabel(label if panel is axes[0] else f"{label} (dashed, triangles: 95th percentile)")
            panel.set_xscale("log", base=2)
            panel.set_xticks([level.value for level in levels], [f"{level.value:g}" for level in levels])
            panel.set_ylim(bottom=0)
            panel.grid(alpha=0.3)
        axes[0].legend()
    figure.savefig(file, dpi=150)


def _draw_arm(axes: Sequence[Any], levels: Sequence[LevelFigures], arm: Arm, *, color: str) -> None:
    x = [level.value for level in levels]
    of_levels: list[ArmFigures] = [level.arms[arm] for level in levels]
    style = {"color": color, "marker": "o", "linewidth": 2.5 if arm == AUTO else 1.2}
    upper = {**style, "marker": "^", "markerfacecolor": "none", "linestyle": "--"}
    axes[0].plot(x, [_or_nan(f.tokens_per_s) for f in of_levels], label=arm_name(arm), **style)
    for panel, spreads, scale in (
        (axes[1], [f.tpot_s for f in of_levels], 1e3),
        (axes[2], [f.ttft_s for f in of_levels], 1.0),
    ):
        panel.plot(x, [_or_nan(_part(spread, "median", scale)) for spread in spreads], **style)
        panel.plot(x, [_or_nan(_part(spread, "p95", scale)) for spread in spreads], **upper)


def _table(title: str, caption: str | None) -> Table:
    return Table(title=title, caption=caption, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)


def _against(level: LevelFigures, other: Arm | None) -> str:
    ratio = level.ratio(AUTO, other)
    return "-" if ratio is None or other is None else f"{ratio:.2f} ({arm_name(other)})"


def _part(spread: Spread | None, name: str, scale: float = 1.0) -> float | None:
    return None if spread is None else getattr(spread, name) * scale


def _speed(value: float | None) -> str:
    return _number(value, 1 if value is not None and value < 100 else 0)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
