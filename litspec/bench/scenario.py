"""What `litspec bench` can measure, and how a run goes: check, measure, show.

Everything that a user may have got wrong is found before a model is loaded. A scenario is a function to a report, which
`report.py` shows; adding one means adding it to SCENARIOS and to `run_scenario`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from litspec.api.config import EngineConfig
from litspec.paths import expanded

if TYPE_CHECKING:
    from litspec.bench.workload import Workload

SCENARIOS = ("decode", "load")
ONLY_LOAD = ("workload_file", "concurrency")


@dataclass(frozen=True)
class BenchOptions:
    """What to measure and where the figures go.

    Args:
        scenario: one of SCENARIOS.
        repeats: runs of every prompt (decode) or of every arm (load), of which the median counts; None is 3 for decode
            and what the workload says for load.
        max_new_tokens: tokens per answer, at most; None is 64 for decode and what the workload says for load.
        json_file: where the figures are written; "-" is standard output, None nowhere.
        plot_file: where the picture is written, None nowhere.
        workload_file: a YAML file with keys of a Workload, for load alone; None is the built-in one.
        concurrency: the closed levels, for load alone; None is what the workload says.

    Raises:
        ValueError: an option is not usable; says what was given and what is allowed.
    """

    scenario: str = "decode"
    repeats: int | None = None
    max_new_tokens: int | None = None
    json_file: str | None = None
    plot_file: str | None = None
    workload_file: str | None = None
    concurrency: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.scenario not in SCENARIOS:
            raise ValueError(f"scenario was {self.scenario!r}; allowed: {', '.join(SCENARIOS)}")
        if self.repeats is not None and self.repeats < 1:
            raise ValueError(f"repeats was {self.repeats}; allowed: an integer from 1")
        if self.max_new_tokens is not None and self.max_new_tokens < 2:
            raise ValueError(f"max_new_tokens was {self.max_new_tokens}; allowed: an integer from 2")
        for name in ONLY_LOAD:
            if self.scenario != "load" and getattr(self, name) is not None:
                flag = name.removesuffix("_file")
                raise ValueError(f"{flag} was given with the scenario {self.scenario}; allowed: with load alone")
        for file in (self.json_file, self.plot_file):
            if file not in (None, "-") and not expanded(file).parent.is_dir():
                raise ValueError(f"{file!r} lies in a folder that does not exist; allowed: a file in one that does")
        if self.plot_file is not None and find_spec("matplotlib") is None:
            raise ValueError("a plot needs matplotlib, which is not installed; run: pip install 'litspec[bench]'")

    def workload(self) -> Workload:
        """Return the workload of the scenario load: built in, over that the file, over both the options.

        Raises:
            ConfigError: the file cannot be used.
        """
        from litspec.bench.workload import read_workload

        options = {"repeats": self.repeats, "max_new_tokens": self.max_new_tokens, "concurrency": self.concurrency}
        return read_workload(self.workload_file, {name: value for name, value in options.items() if value is not None})

    def engine_defaults(self) -> dict[str, Any]:
        """Return the engine settings that the scenario wants where no flag says otherwise."""
        if self.scenario == "decode":
            return {"max_batch_size": 1}
        # Levels and repeats ask the same prompts: only the first would have to read them.
        return {"max_batch_size": self.workload().num_slots, "num_draft_tokens": "auto", "prefix_reuse": False}


def integers(name: str, text: str) -> tuple[int, ...]:
    """Return the numbers of a flag such as "1,4,16".

    Raises:
        ValueError: it is something else.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ValueError(f"{name} was {text!r}; allowed: integers with commas between them, as in 1,4,16")
    return tuple(int(word) for word in words)


def run_scenario(options: BenchOptions, config: EngineConfig) -> None:
    """Measure one scenario and show its report."""
    from litspec.bench.report import show

    if config.draft in (None, "none"):
        raise ValueError("draft was none; allowed: a draft to compare with plain decoding, as in --draft ngram")
    if options.scenario == "load":
        from litspec.bench.load import measure_load

        show(measure_load(options.workload(), config), options)
    else:
        from litspec.bench.decode import measure_decode

        show(measure_decode(options, config), options)
