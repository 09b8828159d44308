"""The model: its shape, its weights, its tokenizer, and one decoding step for a whole batch."""

from litspec.model.decode import batched_next_token, batched_sample

__all__ = ["batched_next_token", "batched_sample"]
