"""Records what drafts would have been worth at every token of some answers, and what rounds cost on this machine.

    PYTHONPATH=. python tests/benchmarks/record_traces.py

Writes tests/engine/traces/{traces,costs}.json, on which tests/engine/test_policy.py simulates policies; the costs of
drafting in it are those of early exit. The text never depends on drafts, so each answer is generated once, plainly. A
trace is a string with a character for each output token after the first: of a draft of seven tokens made just before
it, how many would be accepted, or "." for no draft.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from litspec.api.llm import LLM
from litspec.bench.decode import builtin_prompts
from litspec.draft import EarlyExitProposer, NgramProposer
from litspec.draft.ngram import NgramIndex
from litspec.engine.acceptance import shown
from litspec.engine.costs import measure_costs
from litspec.engine.options import MAX_AUTO_DRAFT_TOKENS
from litspec.engine.params import SamplingParams
from litspec.model.compile import CompiledGPT
from litspec.model.decode import Sampling, batched_sample
from litspec.model.window import Shapes

MODEL = "smollm2-135m-instruct"
FOLDER = Path(__file__).parents[1] / "engine/traces"
EARLY_EXIT_LAYERS = (10, 22, 28)
COSTS_LAYERS = 10
TEMPERATURES = (0.0, 0.8)
MAX_NEW_TOKENS = 256
OTHER_PROMPTS = {
    "repeat": "Write the sentence 'The quick brown fox jumps over the lazy dog.' thirty times, one on each line.",
    "poem": "Write a poem about winter in which no two lines rhyme.",
    "table": "Make a multiplication table from 1 to 12 as lines of the form '3 x 4 = 12'.",
    "names": "List forty first names, each with its origin.",
}


def main() -> None:
    """Record and write."""
    llm = LLM.load(MODEL, draft=None, max_batch_size=8)
    traces = record(llm)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "traces.json").write_text(json.dumps(traces, indent=1) + "\n")
    target = llm.engine.target
    assert isinstance(target, CompiledGPT)
    shapes = Shapes.plan(max_batch_size=8, num_draft_tokens=MAX_AUTO_DRAFT_TOKENS)
    target.warm_up(llm.engine.cache, shapes)
    early_exit = EarlyExitProposer(target, llm.engine.cache, num_layers=COSTS_LAYERS, shapes=shapes)
    costs = measure_costs(target, llm.engine.cache, shapes, early_exit)
    table = {
        "step_ms": {f"{rows}x{width}": round(s * 1e3, 2) for (rows, width), s in costs.step_s.items()},
        "draft_ms": {
            str(rows): [round(cost.first_s * 1e3, 2), round(cost.step_s * 1e3, 2)] for rows, cost in costs.draft.items()
        },
    }
    (FOLDER / "costs.json").write_text(json.dumps(table, indent=1) + "\n")
    print(json.dumps(table))
    llm.close()


def record(llm: LLM) -> list[dict[str, str | float]]:
    """Generate the answers and return their traces."""
    prompts = {prompt.id: prompt.prompt for prompt in builtin_prompts()} | OTHER_PROMPTS
    chats = [[{"role": "user", "content": text}] for text in prompts.values()]
    traces = []
    for temperature in TEMPERATURES:
        params = SamplingParams(max_new_tokens=MAX_NEW_TOKENS, temperature=temperature, top_k=None, top_p=1.0, seed=1)
        for name, chat, answer in zip(prompts, chats, llm.chat(chats, params), strict=True):
            tokens = llm.prepare(chat, params).prompt_ids + answer.token_ids
            start = len(tokens) - len(answer.token_ids) + 1
            trace: dict[str, str | float] = {"name": name, "temperature": temperature, "ngram": ngram(tokens, start)}
            for layers in EARLY_EXIT_LAYERS:
                trace[f"early-exit:{layers}"] = early_exit(llm, tokens, start, layers, temperature)
            traces.append(trace)
            print(name, temperature, len(answer.token_ids))
    return traces


def ngram(tokens: list[int], start: int) -> str:
    """Return the trace of prompt lookup from position `start` on."""
    proposer = NgramProposer()
    index = NgramIndex(proposer.min_n, proposer.max_n)
    trace = ""
    for position in range(start, len(tokens)):
        index.extend(tokens[:position])
        draft = index.continuation(tokens[:position], MAX_AUTO_DRAFT_TOKENS)
        _, right = shown(draft, tokens[position:])
        trace += str(right) if draft else "."
    return trace


@torch.inference_mode()
def early_exit(llm: LLM, tokens: list[int], start: int, num_layers: int, temperature: float) -> str:
    """Return the trace of the target's first layers: as long as they are right, they see the answer itself."""
    target = llm.engine.target
    assert isinstance(target, CompiledGPT)
    idx = torch.tensor([tokens[:-1]])
    logits = target.logits(target.gpt.hidden(idx, num_layers=num_layers)[:, start - 1 :])
    positions = torch.arange(start, len(tokens))[None]
    chosen = batched_sample(logits, positions, Sampling.of([temperature], [None], [1.0], [1]))[0].tolist()
    run, trace = 0, ""
    for position in range(len(tokens) - 1, start - 1, -1):
        run = min(run + 1, MAX_AUTO_DRAFT_TOKENS) if chosen[position - start] == tokens[position] else 0
        trace = str(run) + trace
    return trace


if __name__ == "__main__":
    main()
