"""GPT: the Llama architecture as a plain specification, with a cache that is addressed by position.

`block_forward` is one layer as a pure function of tensors: its weights, its input and its cache come in as arguments,
so that one compiled trace serves every layer (model/compile.py). Everything else here is the loop around it. The
variants (Qwen2's biases, Qwen3's q/k norm) are weights that a layer has or has not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from litspec.kvcache import KVCache
from litspec.model.config import Config
from litspec.model.rope import rope_table
from litspec.ops.attention import cached_attention, uncached_attention
from litspec.ops.index2d import index_select_2d
from litspec.ops.layers import apply_rope, linear, rms_norm, silu_mul
from litspec.ops.packed import filled_up, is_packed, packed_rows, packed_shape

BlockFunction = Callable[..., Tensor]


def block_forward(
    config: Config,
    x_BTC: Tensor,
    cos_BTD: Tensor,
    sin_BTD: Tensor,
    input_pos_BT: Tensor,
    slots_B: Tensor | None,
    k_cache_SKMD: Tensor | None,
    v_cache_SKMD: Tensor | None,
    attention_norm: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    mlp_norm: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    q_bias: Tensor | None = None,
    k_bias: Tensor | None = None,
    v_bias: Tensor | None = None,
    o_bias: Tensor | None = None,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
) -> Tensor:
    """Run one layer and return the residual stream after it, (B, T, C).

    Everything is positional, because that is what Thunder traces fastest and calls without unpacking.

    Args:
        config: the model's shape.
        x_BTC: the residual stream.
        cos_BTD: RoPE table at the fed positions.
        sin_BTD: likewise.
        input_pos_BT: absolute positions of the fed tokens.
        slots_B: the cache row of each batch row; None, with the caches, attends over the fed tokens alone.
        k_cache_SKMD: the layer's keys, written in place.
        v_cache_SKMD: the layer's values, written in place.
        attention_norm: this and all that follow are the layer's tensors (`Config.layer_shapes`), None for one it lacks.
    """
    B, T, _ = x_BTC.shape
    D, eps = config.head_size, config.norm_eps
    h = rms_norm(x_BTC, attention_norm, eps)
    queries = linear(h, q, q_bias).view(B, T, config.n_head, D)
    keys = linear(h, k, k_bias).view(B, T, config.n_query_groups, D)
    values = linear(h, v, v_bias).view(B, T, config.n_query_groups, D)
    if q_norm is not None and k_norm is not None:
        queries, keys = rms_norm(queries, q_norm, eps), rms_norm(keys, k_norm, eps)
    queries, keys = apply_rope(queries, cos_BTD, sin_BTD), apply_rope(keys, cos_BTD, sin_BTD)
    if k_cache_SKMD is None or v_cache_SKMD is None or slots_B is None:
        y_BTHD = uncached_attention(queries, keys, values, input_pos_BT, D**-0.5)
    else:
        y_BTHD = cached_attention(queries, keys, values, k_cache_SKMD, v_cache_SKMD, slots_B, input_pos_BT, D**-0.5)
    x_BTC = x_BTC + linear(y_BTHD.flatten(2), o, o_bias)
    h = rms_norm(x_BTC, mlp_norm, eps)
    gated = silu_mul(linear(h, gate, gate_bias), linear(h, up, up_bias))
    return x_BTC + linear(gated, down, down_bias)


WEIGHT_NAMES = tuple(inspect.signature(block_forward).parameters)[8:]


class Layer(nn.Module):
    """The tensors of one layer, by name; `block_forward` is what is done with them."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        for name, shape in config.layer_shapes().items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape), requires_grad=False))

    @property
    def weights(self) -> tuple[Tensor | None, ...]:
        """The tensors in the order of `block_forward`, None where the layer has none."""
        return tuple(getattr(self, name, None) for name in WEIGHT_NAMES)


class GPT(nn.Module):
    """A Llama-family language model.

    Its tensors are made on torch's default device and in its default dtype (`model/placement.py` sets both); nothing is
    initialised: `load` fills them.

    Args:
        config: its shape.
        max_seq_length: positions that it can be fed; None is the config's own context.

    Attributes:
        layer_weights: each layer's tensors in the order of `block_forward`.
    """

    def __init__(self, config: Config, *, max_seq_length: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.max_seq_length = max_seq_length or config.block_size
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.n_embd), requires_grad=False)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
        self.norm = nn.Parameter(torch.empty(config.n_embd), requires_grad=False)
        if not config.tie_embeddings:
            self.head = nn.Parameter(torch.empty(config.vocab_size, config.n_embd), requires_grad=False)
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        wide = torch.promote_types(self.dtype, torch.float32)
        cos_MD, sin_MD = rope_table(config.rope, config.head_size, self.max_seq_length)
        self._logits_dtype = wide
        self.register_buffer("cos_MD", cos_MD.to(self.device, wide), persistent=False)
        self.register_buffer("sin_MD", sin_MD.to(self.device, wide), persistent=False)
        self.cos_MD: Tensor
        self.sin_MD: Tensor
        self.layer_weights = self._list_weights()

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Fill the tensors from (name, tensor) pairs by the names of `Config.parameter_shapes`; each is cast.

        A packed one (ops/packed.py) takes the place of the tensor as it is.

        Raises:
            ValueError: for a name or shape that does not belong, or tensors that are missing.
        """
        own = dict(self.named_parameters())
        missing = set(own)
        for name, tensor in tensors:
            if name not in missing:
                raise ValueError(f"tensor {name!r} does not belong to this model, or came twice")
            shape = tuple(own[name].shape)
            if is_packed(tensor) and packed_shape(tensor) == filled_up(shape):
                owner, _, last = name.rpartition(".")
                setattr(self.get_submodule(owner), last, nn.Parameter(tensor.to(self.device), requires_grad=False))
            elif tensor.shape == shape:
                own[name].copy_(tensor)
            else:
                found = packed_shape(tensor) if is_packed(tensor) else tuple(tensor.shape)
                raise ValueError(f"tensor {name!r} was {found}; the config says {shape}")
            missing.remove(name)
        self.layer_weights = self._list_weights()
        if missing:
            raise ValueError(f"{len(missing)} tensors are missing, the first is {min(missing)!r}")

    def _list_weights(self) -> list[tuple[Tensor | None, ...]]:
        return [layer.weights for layer in self.layers if isinstance(layer, Layer)]

    def new_cache(self, num_slots: int) -> KVCache:
        """Return an empty cache for this model with `num_slots` slots of `max_seq_length` positions."""
        return KVCache(
            n_layer=self.config.n_layer,
            num_slots=num_slots,
            n_query_groups=self.config.n_query_groups,
            max_seq_length=self.max_seq_length,
            head_size=self.config.head_size,
            dtype=self.dtype,
            device=self.device,
        )

    def hidden(
        self,
        idx: Tensor,
        input_pos: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        slots: Tensor | None = None,
        num_layers: int | None = None,
        block: BlockFunction = block_forward,
    ) -> Tensor:
        """Return the residual stream after the layers, before the final norm; arguments as `forward`. (B, T, C)."""
        B, T = idx.shape
        if cache is not None and slots is None:
            slots = torch.arange(B, device=idx.device)
        if input_pos is None:
            input_pos = (
                cache.next_positions(slots, T)
                if cache is not None and slots is not None
                else torch.arange(T, device=idx.device).expand(B, T)
            )
        if is_packed(self.embedding):
            x_BTC = packed_rows(self.embedding, idx, self.dtype)
        else:
            x_BTC = index_select_2d(self.embedding, 0, idx)
        cos_BTD = index_select_2d(self.cos_MD, 0, input_pos)
        sin_BTD = index_select_2d(self.sin_MD, 0, input_pos)
        for layer, weights in enumerate(self.layer_weights[:num_layers]):
            k_cache, v_cache = (cache.k[layer], cache.v[layer]) if cache is not None else (None, None)
            x_BTC = block(self.config, x_BTC, cos_BTD, sin_BTD, input_pos, slots, k_cache, v_cache, *weights)
        if cache is not None and slots is not None:
            cache.note_fed(slots, input_pos)
        return x_BTC

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states (…, C): (…, V), float32 (float64 in a float64 model)."""
        head = self.embedding if self.config.tie_embeddings else self.head
        logits = linear(rms_norm(hidden, self.norm, self.config.norm_eps), head)
        return logits[..., : self.config.vocab_size].to(self._logits_dtype)  # a packed head is filled up

    def forward(
        self,
        idx: Tensor,
        input_pos: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        slots: Tensor | None = None,
        num_layers: int | None = None,
        block: BlockFunction = block_forward,
    ) -> Tensor:
        """Feed tokens and return the logits after each of them.

        Args:
            idx: int64 (B, T), token ids.
            input_pos: int64 (B, T), absolute positions; None continues each slot where it was fed last (from 0
                without a cache).
            cache: keys and values so far, written in place; None attends over the fed tokens alone.
            slots: int64 (B,), the cache row of each batch row; None is row b for batch row b.
            num_layers: only the first so many layers; None is all.
            block: the function that runs a layer; a compiled one has the signature of `block_forward`.

        Returns:
            (B, T, V), float32 (float64 in a float64 model).
        """
        hidden = self.hidden(idx, input_pos, cache=cache, slots=slots, num_layers=num_layers, block=block)
        return self.logits(hidden)
