"""GPT.forward: cached equals uncached, prefill equals single steps (CK-03), low precision, layers, and loading.

That its logits are those of transformers is tested with the checkpoint formats. RB-09 (partial rotary) has no test
here: no architecture that loads rotates a part of a head.
"""

from __future__ import annotations

import copy

import pytest
import torch

from litspec.model.config import RopeConfig
from litspec.model.debug import random_tensors
from litspec.model.gpt import GPT, WEIGHT_NAMES
from tests.model.tiny_gpt import TINY, consecutive, some_tokens, tiny_gpt

VARIANTS = {
    "llama": {},
    "one group": {"n_query_groups": 1},
    "qwen2": {"has_qkv_bias": True, "tie_embeddings": True},
    "qwen3": {"has_qk_norm": True, "head_size": 10},
    "all biases": {"has_qkv_bias": True, "has_output_bias": True, "has_mlp_bias": True, "n_query_groups": 4},
}
ROPES = {
    "none": RopeConfig(),
    "linear": RopeConfig(scaling="linear", factor=4.0),
    "llama3": RopeConfig(scaling="llama3", factor=8.0, original_max_position=16),
    "yarn": RopeConfig(scaling="yarn", factor=4.0, original_max_position=16),
}


@pytest.mark.parametrize("rope", ROPES)
def test_one_prefill_single_steps_and_a_window_at_the_end_agree(rope):
    # CK-03
    gpt = tiny_gpt(rope=ROPES[rope])
    tokens = some_tokens(1, 60)
    uncached = gpt(tokens)
    prefill = gpt(tokens, cache=gpt.new_cache(1))
    cache = gpt.new_cache(1)
    steps = torch.cat([gpt(tokens[:, t : t + 1], torch.tensor([[t]]), cache=cache) for t in range(60)], dim=1)
    cache = gpt.new_cache(1)
    gpt(tokens[:, :55], cache=cache)
    window = gpt(tokens[:, 55:], consecutive([55], 5), cache=cache)
    for got in (prefill, steps):
        torch.testing.assert_close(got, uncached, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(window, uncached[:, 55:], rtol=1e-9, atol=1e-10)


def test_each_scaling_gives_other_logits():
    tokens = some_tokens(1, 30)
    last = torch.stack([tiny_gpt(rope=rope)(tokens)[0, -1] for rope in ROPES.values()])
    distances = torch.cdist(last, last) + torch.eye(len(ROPES))
    assert distances.min() > 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
def test_ragged_rows_with_a_cache_equal_each_row_without(variant):
    # RB-01 and LL-14: prompts of 1, 7 and 33 tokens step together.
    gpt = tiny_gpt(**VARIANTS[variant])
    cache, slots = gpt.new_cache(4), torch.tensor([3, 0, 1])
    texts = [some_tokens(1, n + 6, seed=n)[0].tolist() for n in (1, 7, 33)]
    for slot, text in zip(slots, texts, strict=True):
        gpt(torch.tensor([text[:-6]]), cache=cache, slots=slot[None])
    for at in (-6, -3):
        window = torch.tensor([(text[at : at + 3] if at + 3 else text[at:]) for text in texts])
        got = gpt(window, consecutive([len(text) + at for text in texts], 3), cache=cache, slots=slots)
        for b, text in enumerate(texts):
            alone = gpt(torch.tensor([text]))[0]
            torch.testing.assert_close(got[b], alone[len(text) + at :][:3], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_tensor_counts(variant):
    config = tiny_gpt(**VARIANTS[variant]).config
    tokens = some_tokens(1, 5)
    want = tiny_gpt(**VARIANTS[variant])(tokens)
    for name in config.parameter_shapes():
        gpt = tiny_gpt(**VARIANTS[variant])
        parameter = gpt.get_parameter(name)
        parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9)).double()
        assert (gpt(tokens) - want).abs().max() > 1e-6, name


def test_no_id_is_masked():
    # RB-02: ids that often mean padding or end of text are seen like any other.
    gpt = tiny_gpt()
    row, longer = [5, 2, 9, 2, 6, 0, 0], some_tokens(1, 12)[0].tolist()
    cache = gpt.new_cache(2)
    gpt(torch.tensor([row[:4], longer[:4]]), cache=cache)
    got = gpt(torch.tensor([row[4:], longer[4:7]]), cache=cache)
    torch.testing.assert_close(got[0], gpt(torch.tensor([row]))[0, 4:])
    for place in (1, 3, 5):
        other = [*row[:place], 7, *row[place + 1 :]]
        assert (gpt(torch.tensor([other]))[0, -1] - gpt(torch.tensor([row]))[0, -1]).abs().max() > 1e-3


def test_orders_of_the_rows_do_not_count():
    # RB-08
    gpt, tokens = tiny_gpt(), some_tokens(4, 3)
    positions = consecutive([0, 0, 0, 0], 3)
    want = gpt(tokens, positions, cache=gpt.new_cache(4))
    for order in ([3, 2, 1, 0], [1, 3, 0, 2]):
        got = gpt(tokens[order], positions, cache=gpt.new_cache(4), slots=torch.tensor([2, 0, 3, 1]))
        torch.testing.assert_close(got, want[order], rtol=1e-10, atol=1e-12)


def test_a_number_of_layers_is_the_model_without_the_rest():
    whole, tokens = tiny_gpt(n_layer=4), some_tokens(2, 6)
    for n in (1, 3):
        first = tiny_gpt(n_layer=n)
        assert torch.equal(whole(tokens, num_layers=n), first(tokens))
        cache = whole.new_cache(2)
        assert torch.equal(whole(tokens, cache=cache, num_layers=n), first(tokens, cache=first.new_cache(2)))
        assert all(k.any() for k in cache.k[:n]) and not any(k.any() for k in cache.k[n:])
    assert torch.equal(whole(tokens, num_layers=4), whole(tokens))
    assert not torch.equal(whole(tokens, num_layers=3), whole(tokens))


def test_another_block_function_is_used_for_every_layer():
    gpt, calls = tiny_gpt(n_layer=3), []

    def block(config, x, *arguments):
        calls.append(config)
        return x

    tokens = some_tokens(1, 4)
    assert torch.equal(gpt.hidden(tokens, block=block), gpt.embedding[tokens])
    assert calls == [gpt.config] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rope_tables_stay_wide_in_low_precision(dtype):
    # LL-13: angles are never made in bfloat16; the error would be radians at position 3000.
    gpt = tiny_gpt(dtype=dtype, head_size=64, max_seq_length=3100, n_layer=1)
    exact = tiny_gpt(head_size=64, max_seq_length=3100, n_layer=1)
    for got, want in ((gpt.cos_MD, exact.cos_MD), (gpt.sin_MD, exact.sin_MD)):
        assert got.dtype == torch.float32
        assert (got.double() - want).abs().max() <= 2.0**-24
        assert (got.to(dtype).double() - want.to(dtype).double()).abs().max() <= torch.finfo(dtype).eps


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.04)])
def test_logits_leave_wide_and_stay_near_those_of_float64(dtype, tolerance):
    tokens = some_tokens(2, 40)
    gpt, exact = tiny_gpt(dtype=dtype), tiny_gpt()
    rounded = tiny_gpt()
    rounded.load((name, parameter) for name, parameter in gpt.named_parameters())
    got, want = gpt(tokens), rounded(tokens)
    assert got.dtype == torch.float32 and want.dtype == torch.float64
    assert (got - want).abs().max() / want.abs().max() < tolerance
    assert exact(tokens).shape == (2, 40, TINY.vocab_size)


def test_max_seq_length_is_the_configs_unless_given():
    assert tiny_gpt().max_seq_length == TINY.block_size
    gpt = tiny_gpt(max_seq_length=20)
    assert gpt.max_seq_length == 20 and gpt.cos_MD.shape == (20, 8)
    with pytest.raises(IndexError):
        gpt(some_tokens(1, 1), torch.tensor([[20]]))


def test_load_copies_and_casts():
    source = dict(random_tensors(TINY))
    gpt = GPT(TINY)
    gpt.load(source.items())
    assert torch.equal(gpt.layers[1].gate, source["layers.1.gate"].float())
    kept = gpt.embedding.clone()
    source["embedding"].zero_()
    assert torch.equal(gpt.embedding, kept)
    assert set(dict(gpt.named_parameters())) == set(TINY.parameter_shapes())
    assert not any(parameter.requires_grad for parameter in gpt.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({"layers.2.q": t["norm"]}), "tensor 'layers.2.q' does not belong to this model"),
        (lambda t: t.update({"norm": torch.ones(25)}), r"tensor 'norm' was \(25,\); the config says \(24,\)"),
        (lambda t: t.update({"layers.0.q": t["layers.0.q"].T}), r"tensor 'layers.0.q' was \(24, 32\); .* \(32, 24\)"),
        (lambda t: t.pop("layers.1.up"), "1 tensors are missing, the first is 'layers.1.up'"),
        (lambda t: (t.pop("head"), t.pop("norm")), "2 tensors are missing, the first is 'head'"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, message):
    tensors = dict(random_tensors(TINY))
    change(tensors)
    with pytest.raises(ValueError, match=message):
        GPT(TINY).load(tensors.items())


def test_a_tensor_that_comes_twice_is_refused():
    tensors = [*random_tensors(TINY), *random_tensors(TINY)]
    with pytest.raises(ValueError, match="tensor 'embedding' does not belong to this model, or came twice"):
        GPT(TINY).load(tensors)


def test_a_tied_model_has_no_head_and_uses_its_embedding():
    gpt = tiny_gpt(tie_embeddings=True)
    assert "head" not in dict(gpt.named_parameters())
    with pytest.raises(ValueError, match="tensor 'head' does not belong"):
        gpt.load([("head", torch.zeros(61, 24))])
    hidden = torch.randn(1, 1, 24, dtype=torch.float64)
    untied = tiny_gpt()
    untied.load({**dict(gpt.named_parameters()), "head": gpt.embedding}.items())
    assert torch.equal(gpt.logits(hidden), untied.logits(hidden))


def test_weights_stand_in_the_order_of_the_block():
    gpt = tiny_gpt(has_qkv_bias=True)
    (weights, _) = gpt.layer_weights
    by_name = dict(zip(WEIGHT_NAMES, weights, strict=True))
    assert all(by_name[name] is gpt.get_parameter(f"layers.0.{name}") for name in gpt.config.layer_shapes())
    assert by_name["q_norm"] is None and by_name["up_bias"] is None


def test_a_copy_is_a_model_of_its_own():
    gpt = tiny_gpt()
    other = copy.deepcopy(gpt)
    tokens = some_tokens(1, 3)
    want = gpt(tokens)
    other.layers[0].q.zero_()
    assert torch.equal(gpt(tokens), want) and not torch.equal(other(tokens), want)
