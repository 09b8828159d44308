"""The requests of a load: what is asked, and when it arrives; everything is drawn from the workload's seed.

Every arm is asked the same, so that only speed may differ. A level asks the first of one list of questions; levels
therefore share questions, and an answer can be compared across levels as well as across arms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol

from litspec.bench.decode import builtin_prompts
from litspec.bench.workload import AUTO, Arm, Workload
from litspec.engine.params import ParameterError, SamplingParams

if TYPE_CHECKING:
    from litspec.api.llm import LLM


@dataclass(frozen=True)
class Question:
    """One request of a load, whatever the arm that answers it."""

    prompt_ids: list[int]
    max_new_tokens: int
    temperature: float
    seed: int

    def params(self, arm: Arm) -> SamplingParams:
        """Return the sampling parameters that ask it of an arm."""
        return SamplingParams(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            # Given, so that a model's own defaults change no score: ties.py knows neither filters nor penalties.
            top_k=None,
            top_p=1.0,
            min_p=0.0,
            repetition_penalty=1.0,
            seed=self.seed,
            num_draft_tokens=None if arm == AUTO else arm,
        )


class Arrivals(Protocol):
    """When the next request of a level is sent."""

    def wait_s(self, index: int, in_flight: int, elapsed_s: float) -> float | None:
        """Return the seconds until request `index` is due, 0 if it is; None where one in flight must end first."""
        ...

    def due_s(self, index: int, elapsed_s: float) -> float:
        """Return when a request that is sent now was due, in seconds from the start."""
        ...


@dataclass(frozen=True)
class Closed:
    """A request is sent whenever fewer than `concurrency` are in flight."""

    concurrency: int

    def wait_s(self, index: int, in_flight: int, elapsed_s: float) -> float | None:
        """See Arrivals."""
        return 0.0 if in_flight < self.concurrency else None

    def due_s(self, index: int, elapsed_s: float) -> float:
        """See Arrivals."""
        return elapsed_s


@dataclass(frozen=True)
class Open:
    """Request i is due `offsets_s[i]` seconds after the start, however many are in flight."""

    offsets_s: Sequence[float]

    @classmethod
    def poisson(cls, rate: float, num_requests: int, *, seed: int) -> Open:
        """Draw the arrivals of a Poisson process with so many a second, the first at once."""
        random = Random(f"{seed} {rate}")
        offsets_s = [0.0]
        while len(offsets_s) < num_requests:
            offsets_s.append(offsets_s[-1] + random.expovariate(rate))
        return cls(offsets_s)

    def wait_s(self, index: int, in_flight: int, elapsed_s: float) -> float | None:
        """See Arrivals."""
        return max(0.0, self.offsets_s[index] - elapsed_s)

    def due_s(self, index: int, elapsed_s: float) -> float:
        """See Arrivals."""
        return self.offsets_s[index]


@dataclass(frozen=True)
class Level:
    """One point of the load: `value` is a concurrency, or a rate in requests a second."""

    kind: str
    value: float
    num_requests: int
    arrivals: Arrivals

    @property
    def name(self) -> str:
        """The level as tables name it."""
        return f"{self.value:g} in flight" if self.kind == "closed" else f"{self.value:g} per s"


def plan_levels(workload: Workload) -> list[Level]:
    """Return the closed levels, then the open ones."""
    levels = []
    for concurrency in workload.concurrency:
        num_requests = max(workload.least_requests, workload.requests_per_stream * concurrency)
        levels.append(Level("closed", concurrency, num_requests, Closed(concurrency)))
    for rate in workload.rates:
        arrivals = Open.poisson(rate, workload.requests_per_rate, seed=workload.seed)
        levels.append(Level("open", rate, workload.requests_per_rate, arrivals))
    return levels


def plan_questions(llm: LLM, workload: Workload, num_questions: int) -> list[Question]:
    """Draw so many questions for a loaded model; fewer of a seed are the first of more.

    Raises:
        ValueError: the model has no chat template, which the built-in prompts need, or no room for random ones.
    """
    random = Random(workload.seed)
    longest = workload.prompt_tokens[1]
    if workload.prompts == "random" and longest >= llm.max_seq_length:
        raise ValueError(
            f"prompt_tokens went up to {longest}; allowed: up to {llm.max_seq_length - 1}, so that with a new token it "
            f"fits max_seq_length {llm.max_seq_length}"
        )
    prompts = _builtin_ids(llm, random) if workload.prompts == "builtin" else []
    questions = []
    for index in range(num_questions):
        if prompts:
            prompt_ids = prompts[index % len(prompts)]
        else:
            length = random.randint(*workload.prompt_tokens)
            prompt_ids = [random.randrange(llm.engine.target.vocab_size) for _ in range(length)]
        questions.append(
            Question(
                prompt_ids=prompt_ids,
                max_new_tokens=random.randint(*workload.max_new_tokens),
                temperature=float(workload.temperatures[index % len(workload.temperatures)]),
                seed=random.getrandbits(62),
            )
        )
    return questions


def _builtin_ids(llm: LLM, random: Random) -> list[list[int]]:
    """Return the token ids of the built-in prompts in a drawn order."""
    prompts = builtin_prompts()
    random.shuffle(prompts)
    try:
        return [llm.prepare([{"role": "user", "content": p.prompt}], SamplingParams()).prompt_ids for p in prompts]
    except ParameterError as error:
        raise ValueError(
            f"the built-in prompts are chats, and {error}; in a workload file take `prompts: random`"
        ) from None
