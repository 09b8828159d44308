"""The embedded model's logits against transformers', on the prompts that tests/reference stores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from litspec.model.checkpoint import open_checkpoint
from litspec.model.gpt import GPT
from litspec.model.source import resolve_model

pytestmark = pytest.mark.embedded
REFERENCE = load_file(Path(__file__).parents[1] / "reference" / "transformers_logits.safetensors")
PROMPTS = sorted(name.removesuffix(".ids") for name in REFERENCE if name.endswith(".ids") and "top" not in name)


@pytest.fixture(scope="module")
def gpt() -> GPT:
    checkpoint = open_checkpoint(resolve_model("smollm2-135m-instruct", progress=False))
    gpt = GPT(checkpoint.config, max_seq_length=64)
    gpt.load(checkpoint.tensors())
    return gpt


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_equal_transformers_on_the_same_weights(gpt, prompt):
    expected = {name.removeprefix(f"{prompt}."): t for name, t in REFERENCE.items() if name.startswith(f"{prompt}.")}
    with torch.inference_mode():
        logits_TV = gpt(expected["ids"].long()[None])[0]
    scale = expected["max_abs"].item()
    top = logits_TV.gather(-1, expected["top_ids"].long())
    subset = logits_TV[:, REFERENCE["subset"].long()]
    assert (top - expected["top_logits"]).abs().max().item() / scale <= 1e-3
    assert (subset - expected["logits"]).abs().max().item() / scale <= 1e-3
    assert abs(logits_TV.abs().max().item() - scale) / scale <= 1e-3
    assert torch.equal(logits_TV.argmax(-1), expected["argmax"].long())


def test_the_stored_prompts_are_there():
    assert len(PROMPTS) == 5
    assert len(REFERENCE["subset"]) == 256
