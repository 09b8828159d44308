"""What `litspec bench` can measure, and how a run goes: check, measure, show.

Everything that a user may have got wrong is found before a model is loaded. A scenario is a function from the options
and an EngineConfig to a report, which `report.py` shows; adding one means adding it to SCENARIOS.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from litspec.api.config import EngineConfig

SCENARIOS = ("decode",)


@dataclass(frozen=True)
class BenchOptions:
    """What to measure and where the figures go.

    Args:
        scenario: one of SCENARIOS.
        repeats: runs of every prompt, of which the median counts.
        max_new_tokens: tokens per answer, at most.
        json_file: where the figures are written; "-" is standard output, None nowhere.
        plot_file: where the picture is written, None nowhere.

    Raises:
        ValueError: an option is not usable; says what was given and what is allowed.
    """

    scenario: str = "decode"
    repeats: int = 3
    max_new_tokens: int = 64
    json_file: str | None = None
    plot_file: str | None = None

    def __post_init__(self) -> None:
        if self.scenario not in SCENARIOS:
            raise ValueError(f"scenario was {self.scenario!r}; allowed: {', '.join(SCENARIOS)}")
        if self.repeats < 1:
            raise ValueError(f"repeats was {self.repeats}; allowed: an integer from 1")
        if self.max_new_tokens < 2:
            raise ValueError(f"max_new_tokens was {self.max_new_tokens}; allowed: an integer from 2")
        for file in (self.json_file, self.plot_file):
            if file not in (None, "-") and not Path(file).expanduser().parent.is_dir():
                raise ValueError(f"{file!r} lies in a folder that does not exist; allowed: a file in one that does")
        if self.plot_file is not None and find_spec("matplotlib") is None:
            raise ValueError("a plot needs matplotlib, which is not installed; run: pip install 'litspec[bench]'")


def run_scenario(options: BenchOptions, config: EngineConfig) -> None:
    """Measure one scenario and show its report."""
    from litspec.bench.decode import measure_decode
    from litspec.bench.report import show

    if config.draft in (None, "none"):
        raise ValueError("draft was none; allowed: a draft to compare with plain decoding, as in --draft ngram")
    show(measure_decode(options, config), options)
