"""Make transformers_logits.safetensors: what transformers' Llama makes of the embedded model's weights, in float32.

transformers reads, dequantises and un-permutes the GGUF file on its own; nothing of litspec takes part but the stored
token ids of llamacpp_tokens.json. Run it where transformers, accelerate, torch and gguf are installed (it was made with
transformers 5.24 and torch 2.13):

    python tests/reference/make_transformers_logits.py PATH/TO/SmolLM2-135M-Instruct.Q4_1.gguf

For prompt i the file holds `i.ids` (T), `i.argmax` (T), `i.top_ids` and `i.top_logits` (T, 64), `i.logits` (T, 256) of
the 256 ids in `subset`, and `i.max_abs` (1): the largest magnitude among all logits of the prompt.
"""

# ruff: noqa: RUF001  (the texts are meant to hold characters that look alike)

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent
PROMPTS = (
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France?",
    "def f(x):\n    return x + 1\n",
    "今天天气很好，我们去公园吧。2024年11月30日",
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
)
NUM_TOP = 64
NUM_SUBSET = 256


def main() -> None:
    """Write the file beside this script."""
    path = Path(sys.argv[1])
    known = {case["text"]: case["ids"] for case in json.loads((HERE / "llamacpp_tokens.json").read_text())}
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    subset = torch.linspace(0, model.config.vocab_size - 1, NUM_SUBSET, dtype=torch.float64).long()
    tensors = {"subset": subset.int()}
    for i, prompt in enumerate(PROMPTS):
        ids = torch.tensor(known[prompt])
        with torch.inference_mode():
            logits = model(ids[None]).logits[0]
        assert logits.dtype == torch.float32
        top_logits, top_ids = logits.topk(NUM_TOP, dim=-1)
        tensors[f"{i}.ids"] = ids.int()
        tensors[f"{i}.argmax"] = logits.argmax(-1).int()
        tensors[f"{i}.top_ids"] = top_ids.int()
        tensors[f"{i}.top_logits"] = top_logits.contiguous()
        tensors[f"{i}.logits"] = logits[:, subset].contiguous()
        tensors[f"{i}.max_abs"] = logits.abs().max().reshape(1)
        print(f"{len(ids):3} tokens, max |logit| {logits.abs().max():.3f}, {prompt!r}")
    save_file(tensors, HERE / "transformers_logits.safetensors")


if __name__ == "__main__":
    main()
