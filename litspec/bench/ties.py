"""Whether two arms gave the same tokens, and whether rounding can explain where they did not.

A forward of one token and of a window may differ in the last bits, so in float32 and less two runs may part where two
tokens score alike, noise included. The target's scores after the common text are then computed once more, alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from litspec.bench.decode import first_difference, tie_tolerance
from litspec.bench.traffic import Question
from litspec.model.decode import GREEDY_BELOW
from litspec.ops.noise import gumbel_noise
from litspec.ops.sample import scaled_scores

if TYPE_CHECKING:
    from litspec.model.gpt import GPT


@dataclass(frozen=True)
class Answer:
    """What one arm answered to a question at one level, in one repeat."""

    question: int
    level: str
    arm: str
    repeat: int
    token_ids: Sequence[int]


@dataclass(frozen=True)
class Difference:
    """An answer that parts from the first one to the same question, at token `index`."""

    question: int
    level: str
    arm: str
    repeat: int
    index: int
    is_tie: bool


@dataclass(frozen=True)
class Sameness:
    """How many answers were compared, and which of them differ."""

    num_compared: int
    differences: list[Difference]

    @property
    def num_equal(self) -> int:
        """Answers whose tokens are those of the first answer."""
        return self.num_compared - len(self.differences)

    @property
    def num_ties(self) -> int:
        """Answers that part at a tie."""
        return sum(difference.is_tie for difference in self.differences)

    def __str__(self) -> str:
        return f"same tokens: {self.num_equal} of {self.num_compared}, {self.num_ties} ties"


def compare(gpt: GPT, questions: Sequence[Question], answers: Sequence[Answer]) -> Sameness:
    """Compare every answer with the first one to its question."""
    firsts: dict[int, Sequence[int]] = {}
    known: dict[tuple[int, int, int | None], bool] = {}
    differences = []
    for answer in answers:
        first = firsts.setdefault(answer.question, answer.token_ids)
        index = first_difference(first, answer.token_ids)
        if index is None:
            continue
        theirs, ours = (ids[index] if index < len(ids) else None for ids in (first, answer.token_ids))
        key = (answer.question, index, ours)
        if key not in known:
            known[key] = (
                theirs is not None  # no tie explains that only one went on
                and ours is not None
                and is_tie(gpt, questions[answer.question], first[:index], (theirs, ours))
            )
        differences.append(
            Difference(answer.question, answer.level, answer.arm, answer.repeat, index, is_tie=known[key])
        )
    return Sameness(len(answers) - len(firsts), differences)


@torch.inference_mode()
def is_tie(gpt: GPT, question: Question, common_ids: Sequence[int], candidates: tuple[int, int]) -> bool:
    """Return whether two tokens after a common text are both so near to the best that rounding may prefer either."""
    tokens = [*question.prompt_ids, *common_ids]
    device = gpt.device
    logits_11V = gpt(torch.tensor([tokens], device=device))[:, -1:]
    top = float(logits_11V.max())
    if question.temperature < GREEDY_BELOW:
        scores_V = logits_11V[0, 0].double()
    else:
        scores_11V = scaled_scores(logits_11V, torch.tensor([question.temperature], dtype=torch.float64, device=device))
        ids_V = torch.arange(scores_11V.shape[-1], device=device)
        seed_B, position_BT = torch.tensor([question.seed], device=device), torch.tensor([[len(tokens)]], device=device)
        scores_V = (scores_11V + gumbel_noise(seed_B, position_BT, ids_V))[0, 0]
    worst = float(scores_V.max() - scores_V[list(candidates)].min())
    return worst <= tie_tolerance(top, gpt.dtype)
