"""Shows what a scenario measured: a table, a JSON file, a picture. It computes nothing."""

from __future__ import annotations

import json
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from litspec.bench.decode import DecodeReport
from litspec.bench.load import LoadReport
from litspec.bench.load_report import draw_load, load_tables
from litspec.bench.scenario import BenchOptions
from litspec.paths import expanded


def show(report: DecodeReport | LoadReport, options: BenchOptions) -> None:
    """Print the tables and write the files that the options ask for; JSON on standard output moves tables aside."""
    is_json_on_stdout = options.json_file == "-"
    tables = load_tables(report) if isinstance(report, LoadReport) else [decode_table(report)]
    Console(stderr=is_json_on_stdout).print(*tables)
    text = json.dumps(report.to_dict(), indent=2)
    if is_json_on_stdout:
        print(text)
    elif options.json_file is not None:
        expanded(options.json_file).write_text(text + "\n", encoding="utf-8")
    if options.plot_file is not None:
        file = expanded(options.plot_file)
        draw_load(report, file) if isinstance(report, LoadReport) else draw_ratios(report, file)


def decode_table(report: DecodeReport) -> Table:
    """Return one row a prompt, ratio first, and the sum of all below."""
    table = Table(
        title=_title(report),
        caption=_caption(report),
        show_footer=True,
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("prompt", footer="all", no_wrap=True)
    table.add_column("kind")
    table.add_column("ratio", justify="right", footer=_number(report.ratio(), 2), style="bold")
    table.add_column("draft\ntok/s", justify="right")
    table.add_column("plain\ntok/s", justify="right")
    table.add_column("tokens", justify="right", footer=str(sum(p.completion_tokens for p in report.prompts)))
    table.add_column("accepted", justify="right")
    table.add_column("tokens/\nround", justify="right")
    table.add_column("same\ntokens", footer=f"{report.num_equal} of {len(report.prompts)}")
    for p in report.prompts:
        same = "yes" if p.first_difference is None else f"{'tie' if p.is_tie else 'NO'} at {p.first_difference}"
        accepted = "-" if p.acceptance_rate is None else f"{p.acceptance_rate:.0%}"
        speeds = (_number(p.ratio, 2), _number(p.draft_tokens_per_s, 1), _number(p.plain_tokens_per_s, 1))
        length = _number(p.acceptance_length, 2)
        table.add_row(p.id, p.kind, *speeds, str(p.completion_tokens), accepted, length, same)
    return table


def draw_ratios(report: DecodeReport, file: Path) -> None:
    """Draw every prompt's ratio as a bar."""
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports] (the extra `bench`)

    timed = [(p.id, p.ratio) for p in reversed(report.prompts) if p.ratio is not None]
    figure = Figure(figsize=(7, 1 + 0.4 * len(timed)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh([name for name, _ in timed], [ratio for _, ratio in timed], color="#792ee5")
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("decode speed with the draft ÷ without it")
    axes.set_title(_title(report), fontsize=10)
    figure.savefig(file, dpi=150)


def _title(report: DecodeReport) -> str:
    s = report.settings
    return f"{s['model']}: draft {s['draft']}, {s['num_draft_tokens']} tokens, against none"


def _caption(report: DecodeReport) -> str:
    s, m = report.settings, report.machine
    return f"greedy, one stream, dtype {s['dtype']}, median of {s['repeats']}; {m['processor']}, {m['threads']} threads"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
