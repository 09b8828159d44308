"""Config: the shape of a GPT, as a frozen, checked value.

Every loader translates its own format into this (`hf_config.py`, `gguf_config.py`), and `parameter_shapes` is the one
list of the tensors that a model has: GPT allocates by it and checkpoints are checked against it. It knows no files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

ROPE_SCALINGS = ("none", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: base and scaling.

    Args:
        theta: the base of the angles.
        scaling: "none", "linear", "llama3" or "yarn".
        factor: how many times the context is stretched (linear, llama3, yarn).
        original_max_position: the context in tokens before stretching (llama3, yarn need it).
        low_freq_factor: llama3: wavelengths above original_max_position / this are stretched in full.
        high_freq_factor: llama3: wavelengths below original_max_position / this stay as they are.
        beta_fast: yarn: dimensions that turn at least this often within the original context stay as they are.
        beta_slow: yarn: dimensions that turn at most this often are stretched in full.
        truncate: yarn: round the bounds of the ramp outwards to whole dimensions.
        attention_factor: yarn: multiplies cos and sin; None derives it from factor, mscale and mscale_all_dim.
        mscale: yarn: see attention_factor; counts only together with mscale_all_dim.
        mscale_all_dim: yarn: see attention_factor.
        freq_factors: one divisor for each pair of dimensions, in place of a scaling (GGUF stores llama3's scaling so).

    Raises:
        ValueError: a value that no RoPE has.
    """

    theta: float = 10000.0
    scaling: str = "none"
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    freq_factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.scaling not in ROPE_SCALINGS:
            raise ValueError(f"rope scaling was {self.scaling!r}; allowed: {', '.join(ROPE_SCALINGS)}")
        if not (math.isfinite(self.theta) and self.theta > 1.0):
            raise ValueError(f"rope theta was {self.theta!r}; allowed: a number above 1")
        if not (math.isfinite(self.factor) and self.factor > 0.0):
            raise ValueError(f"rope factor was {self.factor!r}; allowed: a number above 0")
        if self.scaling in ("llama3", "yarn") and (self.original_max_position or 0) < 1:
            raise ValueError(
                f"rope scaling {self.scaling!r} came with original_max_position {self.original_max_position!r}; "
                "allowed: a number of tokens from 1"
            )
        if self.scaling == "llama3" and not 0.0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"rope low_freq_factor was {self.low_freq_factor!r} and high_freq_factor {self.high_freq_factor!r}; "
                "allowed: both above 0, the low one smaller"
            )
        if self.scaling == "yarn" and not 0.0 < self.beta_slow <= self.beta_fast:
            raise ValueError(
                f"rope beta_slow was {self.beta_slow!r} and beta_fast {self.beta_fast!r}; "
                "allowed: both above 0, the slow one not larger"
            )
        if self.freq_factors is not None:
            if self.scaling != "none":
                raise ValueError(f"rope freq_factors came with scaling {self.scaling!r}; allowed: one of the two")
            if not all(math.isfinite(f) and f > 0.0 for f in self.freq_factors):
                raise ValueError("rope freq_factors hold a number that is not above 0; allowed: finite numbers above 0")


_COUNTS = (
    "n_layer",
    "n_head",
    "n_query_groups",
    "head_size",
    "n_embd",
    "intermediate_size",
    "vocab_size",
    "block_size",
)


@dataclass(frozen=True)
class Config:
    """The shape of a Llama-family GPT.

    Args:
        name: what the model calls itself; for people only.
        n_layer: number of layers.
        n_head: query heads.
        n_query_groups: key and value heads; each serves n_head / n_query_groups query heads.
        head_size: dimensions of a head, not always n_embd / n_head.
        n_embd: width of the residual stream.
        intermediate_size: width of the MLP.
        vocab_size: rows of the embedding, padding included.
        block_size: the model's own trained context, in tokens.
        norm_eps: what RMSNorm adds to the mean square.
        rope: the rotary position embedding.
        tie_embeddings: the head is the embedding; there is no tensor `head`.
        has_qkv_bias: q, k and v have biases (Qwen2).
        has_output_bias: o has a bias.
        has_mlp_bias: gate, up and down have biases.
        has_qk_norm: RMSNorm over each head of q and k before RoPE (Qwen3).

    Raises:
        ValueError: sizes that do not make a model.
    """

    name: str
    n_layer: int
    n_head: int
    n_query_groups: int
    head_size: int
    n_embd: int
    intermediate_size: int
    vocab_size: int
    block_size: int
    norm_eps: float = 1e-5
    rope: RopeConfig = field(default_factory=RopeConfig)
    tie_embeddings: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} was {value!r}; allowed: an integer from 1")
        if self.n_head % self.n_query_groups:
            raise ValueError(
                f"n_head was {self.n_head} and n_query_groups {self.n_query_groups}; "
                "allowed: query heads that divide evenly among the key and value heads"
            )
        if self.head_size % 2:
            raise ValueError(f"head_size was {self.head_size}; allowed: an even number, since RoPE turns pairs")
        if not (math.isfinite(self.norm_eps) and self.norm_eps > 0.0):
            raise ValueError(f"norm_eps was {self.norm_eps!r}; allowed: a number above 0")
        factors = self.rope.freq_factors
        if factors is not None and len(factors) != self.head_size // 2:
            raise ValueError(f"rope freq_factors were {len(factors)}; allowed: head_size / 2 = {self.head_size // 2}")

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of one layer's tensors; weights are (out, in), as torch's linear takes them."""
        C, D, F = self.n_embd, self.head_size, self.intermediate_size
        q, kv = self.n_head * D, self.n_query_groups * D
        shapes: dict[str, tuple[int, ...]] = {
            "attention_norm": (C,),
            "q": (q, C),
            "k": (kv, C),
            "v": (kv, C),
            "o": (C, q),
            "mlp_norm": (C,),
            "gate": (F, C),
            "up": (F, C),
            "down": (C, F),
        }
        if self.has_qkv_bias:
            shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
        if self.has_output_bias:
            shapes |= {"o_bias": (C,)}
        if self.has_mlp_bias:
            shapes |= {"gate_bias": (F,), "up_bias": (F,), "down_bias": (C,)}
        if self.has_qk_norm:
            shapes |= {"q_norm": (D,), "k_norm": (D,)}
        return shapes

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor: `embedding`, `layers.{i}.{name}`, `norm`, and `head` unless tied."""
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.vocab_size, self.n_embd)}
        for layer in range(self.n_layer):
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in self.layer_shapes().items()}
        shapes["norm"] = (self.n_embd,)
        if not self.tie_embeddings:
            shapes["head"] = (self.vocab_size, self.n_embd)
        return shapes
