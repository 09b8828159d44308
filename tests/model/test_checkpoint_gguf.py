"""GGUF files: row order, tied heads, quantised types, keys that are refused, and files that are broken.

Cases: CK-18 (q/k rows), CK-19 (no output tensor), CK-20 (types, biases, rows not a multiple of 32, refusals before any
allocation), CK-01's llama3 as GGUF stores it (rope_freqs), CK-07 and CK-12 as refusals. Files are written with the gguf
library; blocks are decoded here by the published formulas, number by number.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from litspec.model.checkpoint import CheckpointError, open_checkpoint
from litspec.model.gpt import GPT
from litspec.model.source import resolve_model
from litspec.ops.packed import is_packed, unpack
from tests.model.tiny_checkpoints import our_logits, patch_type, some_tokens, their_logits, tiny_model, write_gguf

UP = "blk.1.ffn_up.weight"


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama")


@pytest.fixture
def file(llama, tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", llama, arch="llama")


def tensors_by_gguf_name(file: Path) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(file)
    return {checkpoint.stored[name].name: tensor for name, tensor in checkpoint.tensors()}


# CK-18: row order


@pytest.mark.parametrize("groups", [2, 8, 1])
@pytest.mark.parametrize("bias", [False, True])
def test_llama_rows_are_put_back(groups, bias, tmp_path):
    model, idx = tiny_model("llama", num_key_value_heads=groups, attention_bias=bias, mlp_bias=bias), some_tokens(40)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", model, arch="llama"))
    assert checkpoint.config.has_output_bias == bias
    torch.testing.assert_close(our_logits(checkpoint, idx), their_logits(model, idx), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "changes"), [("qwen2", {}), ("qwen3", {"head_dim": 16}), ("qwen3", {"tie_word_embeddings": True})]
)
def test_qwen_rows_are_left_as_they_are(kind, changes, tmp_path):
    model, idx = tiny_model(kind, **changes), some_tokens(40)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", model, arch=kind))
    torch.testing.assert_close(our_logits(checkpoint, idx), their_logits(model, idx), rtol=0, atol=1e-4)


# RoPE


def test_rope_freqs_are_llama3_scaling(tmp_path):
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = tiny_model("llama", rope_parameters={**rope, "original_max_position_embeddings": 32})
    scaled = model.model.rotary_emb.inv_freq.numpy()
    factors = (1.0 / 1e4 ** (np.arange(0, 8, 2) / 8) / scaled).astype(np.float32)  # as llama.cpp's converter has them
    file = write_gguf(tmp_path / "tiny.gguf", model, arch="llama", extra={"rope_freqs.weight": factors})
    idx = some_tokens(60)
    torch.testing.assert_close(our_logits(open_checkpoint(file), idx), their_logits(model, idx), rtol=0, atol=1e-4)
    plain = open_checkpoint(write_gguf(tmp_path / "plain.gguf", model, arch="llama"))
    assert float((our_logits(plain, idx) - their_logits(model, idx)).abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("rope", "keys"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ({"rope_type": "linear", "factor": 4.0}, {"rope.scale_linear": 4.0}),
        (
            {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 8.0,
                "rope.scaling.original_context_length": 32,
            },
        ),
    ],
)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_rope_scaling_keys(kind, rope, keys, tmp_path):
    model, idx = tiny_model(kind, rope_parameters={"rope_theta": 1e4, **rope}), some_tokens(60)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", model, arch=kind, keys=keys))
    torch.testing.assert_close(our_logits(checkpoint, idx), their_logits(model, idx), rtol=0, atol=1e-4)


def test_float32_keys_become_the_numbers_that_were_meant(file):
    config = open_checkpoint(file).config
    assert config.norm_eps == 1e-6
    assert config.rope.theta == 10000.0


# CK-19: tied


def test_a_file_without_output_uses_the_embedding(tmp_path):
    model, idx = tiny_model("llama", tie_word_embeddings=True), some_tokens(20)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", model, arch="llama"))
    assert checkpoint.config.tie_embeddings
    torch.testing.assert_close(our_logits(checkpoint, idx), their_logits(model, idx), rtol=0, atol=1e-4)


def test_a_file_with_neither_is_refused(llama, tmp_path):
    without = ("output.weight", "token_embd.weight")
    file = write_gguf(tmp_path / "tiny.gguf", llama, arch="llama", without=without, keys={"vocab_size": 96})
    with pytest.raises(CheckpointError, match=r"lacks tensor token_embd\.weight"):
        open_checkpoint(file)


# CK-20: types


def decode_block(kind: Kind, block: bytes) -> list[np.float32]:
    """Decode one block by ggml's published layout, a number at a time."""
    if kind == Kind.F32:
        return list(np.frombuffer(block, np.float32))
    if kind == Kind.BF16:
        return list(np.frombuffer(b"\0\0" + block, np.float32))
    scale = np.float32(np.frombuffer(block[:2], np.float16)[0])
    if kind == Kind.F16:
        return [scale]
    if kind == Kind.Q8_0:
        return [np.float32(byte - 256 if byte > 127 else byte) * scale for byte in block[2:]]
    nibbles = [byte & 15 for byte in block[-16:]] + [byte >> 4 for byte in block[-16:]]
    if kind == Kind.Q4_0:
        return [np.float32(nibble - 8) * scale for nibble in nibbles]
    minimum = np.float32(np.frombuffer(block[2:4], np.float16)[0])
    return [np.float32(nibble) * scale + minimum for nibble in nibbles]


def decode_k_block(kind: Kind, block: bytes) -> list[np.float32]:
    """Decode one block of 256 by ggml's published layout, a number at a time."""
    if kind == Kind.Q6_K:
        lows, highs, scales = block[:128], block[128:192], np.frombuffer(block[192:208], np.int8)
        scale = np.float32(np.frombuffer(block[208:], np.float16)[0])
        found = []
        for n in range(256):
            half, place = divmod(n, 128)
            quarter, i = divmod(place, 32)
            low = lows[64 * half + 32 * (quarter % 2) + i] >> 4 * (quarter // 2) & 15
            high = highs[32 * half + i] >> 2 * quarter & 3
            found.append(scale * np.float32(scales[n // 16]) * np.float32((low | high << 4) - 32))
        return found
    scale, minimum = (np.float32(np.frombuffer(block[at : at + 2], np.float16)[0]) for at in (0, 2))
    sixes, numbers = block[4:16], block[-128:]
    found = []
    for n in range(256):
        group, i = divmod(n, 32)
        if group < 4:
            own_scale, own_minimum = sixes[group] & 63, sixes[group + 4] & 63
        else:
            own_scale = sixes[group + 4] & 15 | sixes[group - 4] >> 6 << 4
            own_minimum = sixes[group + 4] >> 4 | sixes[group] >> 6 << 4
        number = numbers[32 * (group // 2) + i] >> 4 * (group % 2) & 15
        if kind == Kind.Q5_K:
            number |= (block[16 + i] >> group & 1) << 4
        found.append(np.float32(number) * (scale * np.float32(own_scale)) - minimum * np.float32(own_minimum))
    return found


def random_blocks(kind: Kind, rows: int, columns: int, seed: int) -> np.ndarray:
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows, columns // block_size, block_bytes), dtype=np.uint8)
    if kind == Kind.F32:
        blocks = generator.standard_normal((rows, columns), np.float32).view(np.uint8)
    elif kind == Kind.BF16:
        blocks[..., 1] &= 0xBF  # finite
    elif kind in (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K):
        halves = slice(208, 210) if kind == Kind.Q6_K else slice(0, 4)
        scales = generator.standard_normal((*blocks.shape[:2], (halves.stop - halves.start) // 2)).astype(np.float16)
        blocks[..., halves] = scales.view(np.uint8)
    else:  # the scale, and Q4_1's minimum
        halves = 2 if kind == Kind.Q4_1 else 1
        scales = generator.standard_normal((*blocks.shape[:2], halves)).astype(np.float16)
        blocks[..., : 2 * halves] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


@given(
    kind=st.sampled_from([Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1]), seed=st.integers(0, 2**31)
)
@settings(max_examples=24, deadline=None)
def test_types_are_decoded_bit_for_bit(kind, seed, llama, tmp_path_factory):
    raw = random_blocks(kind, rows=64, columns=96, seed=seed)  # ffn_down: three blocks a row
    name, (_, block_bytes) = "blk.0.ffn_down.weight", gguf.GGML_QUANT_SIZES[kind]
    file = tmp_path_factory.mktemp("types") / "tiny.gguf"
    write_gguf(file, llama, arch="llama", types={name: kind}, extra={name: raw})
    ours = tensors_by_gguf_name(file)[name]
    stored = {Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}.get(kind, torch.float32)
    assert ours.dtype == stored
    expected = [n for block in raw.reshape(-1, block_bytes) for n in decode_block(kind, block.tobytes())]
    assert ours.float().numpy().tobytes() == np.array(expected, np.float32).tobytes()


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q5_K, Kind.Q6_K])
@pytest.mark.parametrize("seed", range(4))
def test_k_types_are_decoded_bit_for_bit_and_as_gguf_does(kind, seed, tmp_path):
    model = tiny_model("llama", intermediate_size=512)
    raw = random_blocks(kind, rows=64, columns=512, seed=seed)
    name, (_, block_bytes) = "blk.0.ffn_down.weight", gguf.GGML_QUANT_SIZES[kind]
    file = write_gguf(tmp_path / "tiny.gguf", model, arch="llama", types={name: kind}, extra={name: raw})
    ours = tensors_by_gguf_name(file)[name]
    expected = [n for block in raw.reshape(-1, block_bytes) for n in decode_k_block(kind, block.tobytes())]
    assert ours.numpy().tobytes() == np.array(expected, np.float32).tobytes()
    assert np.allclose(ours.numpy(), gguf.quants.dequantize(raw, kind), rtol=1e-6, atol=1e-6)
    stored = next(tensor for tensor in open_checkpoint(file).stored.values() if tensor.name == name)
    assert stored.read_packed is not None
    packed = stored.read_packed()
    assert unpack(packed).equal(ours) and packed.numel() == stored.packed_bytes
    order = torch.randperm(64)
    assert unpack(stored.read_packed(order)).equal(ours[order])


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_packed_tensors_hold_the_same_numbers(kind, arch, tmp_path):
    model = tiny_model(arch)
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    names = [*(f"blk.{layer}.{part}.weight" for layer in (0, 1) for part in parts), "output.weight"]
    file = write_gguf(tmp_path / "tiny.gguf", model, arch=arch, types=dict.fromkeys(names, kind))
    checkpoint = open_checkpoint(file)
    plain, packed = dict(checkpoint.tensors()), dict(checkpoint.packed_tensors())
    found = {name: tensor for name, tensor in packed.items() if is_packed(tensor)}
    assert len(found) == len(names)
    for name, tensor in packed.items():
        numbers = unpack(tensor)[: len(plain[name])] if name in found else tensor
        assert numbers.equal(plain[name].float()), name
    numbers = sum(plain[name].numel() for name in found)
    assert checkpoint.packed_size == (numbers, sum(tensor.numel() for tensor in found.values()))


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_packed_models_answer_as_their_dequantised_weights(kind, tmp_path):
    model, idx = tiny_model("llama"), some_tokens(20)
    names = [f"blk.{layer}.{part}.weight" for layer in (0, 1) for part in ("attn_q", "attn_k", "ffn_up", "ffn_down")]
    names += ["output.weight", "token_embd.weight"]
    file = write_gguf(tmp_path / "tiny.gguf", model, arch="llama", types=dict.fromkeys(names, kind))
    checkpoint = open_checkpoint(file)
    gpt = GPT(checkpoint.config)
    gpt.load(checkpoint.packed_tensors())
    assert is_packed(gpt.embedding) and is_packed(gpt.head)
    with torch.inference_mode():
        found = gpt(idx)
    torch.testing.assert_close(found, our_logits(checkpoint, idx), rtol=0, atol=2e-4)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_quantised_models_answer_as_their_dequantised_weights(kind, tmp_path):
    model, idx = tiny_model("qwen2"), some_tokens(20)
    names = [f"blk.{layer}.{part}.weight" for layer in (0, 1) for part in ("attn_q", "attn_v", "ffn_up", "ffn_down")]
    file = write_gguf(tmp_path / "tiny.gguf", model, arch="qwen2", types=dict.fromkeys([*names, "output.weight"], kind))
    with torch.no_grad():
        weights = model.state_dict()
        for name, ours in tensors_by_gguf_name(file).items():
            if name == "blk.1.ffn_down.weight":
                theirs = weights["model.layers.1.mlp.down_proj.weight"]
                assert float((ours - theirs).abs().max()) < 0.1  # a quantisation of the same weights
        layers = {"attn_q": "self_attn.q_proj", "attn_v": "self_attn.v_proj", "ffn_up": "mlp.up_proj"}
        for name, ours in tensors_by_gguf_name(file).items():
            _, layer, part, _ = name.split(".") if name in names else ("", "", "", "")
            if part:
                module = layers.get(part, "mlp.down_proj")
                weights[f"model.layers.{layer}.{module}.weight"].copy_(ours)
            elif name == "output.weight":
                weights["lm_head.weight"].copy_(ours)
    torch.testing.assert_close(our_logits(open_checkpoint(file), idx), their_logits(model, idx), rtol=0, atol=1e-4)


def test_rows_that_are_no_multiple_of_32_are_read_in_unquantised_types(tmp_path):
    model, idx = tiny_model("llama", hidden_size=48, num_attention_heads=4), some_tokens(20)
    types = {"blk.0.attn_q.weight": Kind.F16, UP: Kind.BF16, "blk.0.ffn_down.weight": Kind.Q8_0}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", model, arch="llama", types=types))
    assert checkpoint.config.n_embd == 48
    torch.testing.assert_close(our_logits(checkpoint, idx), their_logits(model, idx), rtol=0.05, atol=0.3)


def test_quantised_rows_that_are_no_multiple_of_32_are_refused(tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama", hidden_size=48, num_attention_heads=4), arch="llama")
    patch_type(file, UP, Kind.Q8_0)
    with pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up\.weight has rows of 48 numbers in Q8_0; allowed: a mul"):
        open_checkpoint(file)


@pytest.mark.parametrize(
    ("kind", "name"), [(Kind.Q3_K, "Q3_K"), (Kind.IQ4_NL, "IQ4_NL"), (Kind.F64, "F64"), (250, "the unknown type 250")]
)
def test_other_types_are_refused_before_anything_is_read(kind, name, file, monkeypatch):
    patch_type(file, UP, kind)
    monkeypatch.setattr(np, "fromfile", lambda *args, **options: pytest.fail("read a tensor"))
    with pytest.raises(CheckpointError, match=rf"blk\.1\.ffn_up\.weight is stored as {name}; allowed: F32, F16, Q4_0"):
        open_checkpoint(file)


def test_opening_reads_no_tensor(file, monkeypatch):
    checkpoint = open_checkpoint(file)
    monkeypatch.setattr(np, "fromfile", lambda *args, **options: pytest.fail("read a tensor"))
    assert open_checkpoint(file).config == checkpoint.config
    with pytest.raises(pytest.fail.Exception, match="read a tensor"):
        next(checkpoint.tensors())


# Keys and tensors that are refused


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"expert_count": 8}, r"llama\.expert_count was 8; allowed: 0, or no such key"),
        ({"attention.sliding_window": 8}, r"llama\.attention\.sliding_window was 8; allowed: none"),  # CK-12
        ({"rope.scaling.type": "longrope"}, r"llama\.rope\.scaling\.type was 'longrope'; allowed: none, linear, yarn"),
        ({"rope.scaling.type": "linear"}, r"llama\.rope\.scaling\.factor is missing"),
        ({"rope.scaling.alpha": 2.0}, r"llama\.rope\.scaling\.alpha was 2\.0"),  # dynamic NTK: CK-07
        ({"rope.scaling.yarn_attn_factor": 0.5}, r"yarn_attn_factor was 0\.5; allowed: 1\.0"),
        ({"rope.dimension_count": 4}, r"llama\.rope\.dimension_count was 4; allowed: the head size, 8"),  # CK-11
        ({"logit_scale": 2.0}, r"llama\.logit_scale was 2\.0"),
        ({"final_logit_softcapping": 30.0}, r"llama\.final_logit_softcapping was 30\.0"),
        ({"attention.causal": False}, r"llama\.attention\.causal was False; allowed: True"),
        ({"split.count": 2}, r"split\.count was 2; allowed: a model in one file"),
    ],
)
def test_keys_that_change_the_result_are_refused(keys, found, llama, tmp_path):
    with pytest.raises(CheckpointError, match=found):
        open_checkpoint(write_gguf(tmp_path / "tiny.gguf", llama, arch="llama", keys=keys))


def test_other_architectures_are_refused(llama, tmp_path):
    with pytest.raises(CheckpointError, match=r"general\.architecture was 'gemma2'; allowed: llama, qwen2, qwen3"):
        open_checkpoint(write_gguf(tmp_path / "tiny.gguf", llama, arch="gemma2"))


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"without": (UP,)}, r"lacks tensor blk\.1\.ffn_up\.weight"),
        ({"extra": {"blk.0.attn_q_norm.weight": np.ones(8, np.float32)}}, r"has tensor blk\.0\.attn_q_norm\.weight"),
        ({"extra": {UP: np.ones((8, 64), np.float32)}}, r"ffn_up\.weight has shape \(8, 64\).*makes it \(96, 64\)"),
        ({"extra": {"rope_freqs.weight": np.ones(3, np.float32)}}, r"freq_factors were 3; allowed: head_size / 2 = 4"),
    ],
)
def test_missing_unexpected_and_wrong_tensors_are_named(options, found, llama, tmp_path):
    with pytest.raises(CheckpointError, match=found):
        open_checkpoint(write_gguf(tmp_path / "tiny.gguf", llama, arch="llama", **options))


# Broken files


@given(part=st.floats(0, 1, exclude_max=True))
@settings(max_examples=40, deadline=None)
def test_a_truncated_file_is_one_clear_error(part, llama, tmp_path_factory):
    file = write_gguf(tmp_path_factory.mktemp("cut") / "tiny.gguf", llama, arch="llama")
    whole = file.read_bytes()
    file.write_bytes(whole[: int(part * (len(whole) - 64))])
    with pytest.raises(CheckpointError, match=r"tiny\.gguf"):
        open_checkpoint(file)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_header_is_one_clear_error_or_harmless(data, llama, tmp_path_factory):
    file = write_gguf(tmp_path_factory.mktemp("damaged") / "tiny.gguf", llama, arch="llama")
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, 2500))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    try:
        for _ in open_checkpoint(file).tensors():
            pass
    except CheckpointError as error:
        message = str(error)
    else:
        message = "harmless: tiny.gguf"
    assert "tiny.gguf" in message


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model", b"GGUF\x01\0\0\0" + b"\0" * 64])
def test_what_is_no_gguf_is_one_clear_error(content, tmp_path):
    (tmp_path / "broken.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"broken\.gguf"):
        open_checkpoint(tmp_path / "broken.gguf")


def test_a_file_that_is_cut_after_opening_is_one_error(file):
    checkpoint = open_checkpoint(file)
    file.write_bytes(file.read_bytes()[:-30000])
    with pytest.raises(CheckpointError, match="cut short"):
        dict(checkpoint.tensors())


def test_a_file_is_known_by_its_first_bytes(file):
    other = file.rename(file.with_suffix(".blob"))  # as the hub's cache names what its links point to
    assert open_checkpoint(other).config.n_layer == 2


# What the file says of generation


def test_end_of_text_ids_template_and_sampling_defaults(llama, tmp_path):
    keys = {
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.chat_template": "{{ messages }}",
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
        "general.name": "Tiny",
    }
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", llama, arch="llama", keys=keys))
    assert checkpoint.eos_token_ids == {2, 5}
    assert checkpoint.chat_template == "{{ messages }}"
    assert checkpoint.generation_config == {"temperature": 0.5, "top_k": 20}
    assert checkpoint.config.name == "Tiny"


def test_a_file_that_says_nothing_of_generation(file):
    checkpoint = open_checkpoint(file)
    assert (checkpoint.eos_token_ids, checkpoint.chat_template, checkpoint.generation_config) == (set(), None, {})
    assert checkpoint.config.name == "tiny"


@pytest.mark.embedded
def test_the_embedded_model_opens_and_every_tensor_reads():
    checkpoint = open_checkpoint(resolve_model("smollm2-135m-instruct"))
    config = checkpoint.config
    assert (config.n_layer, config.n_head, config.n_query_groups, config.head_size) == (30, 9, 3, 64)
    assert (config.n_embd, config.vocab_size, config.block_size) == (576, 49152, 8192)
    assert (config.norm_eps, config.rope.theta, config.tie_embeddings) == (1e-5, 1e5, True)
    assert checkpoint.eos_token_ids == {2}
    assert "<|im_start|>" in (checkpoint.chat_template or "")
    names = [name for name, tensor in checkpoint.tensors() if tensor.dtype == torch.float32 and tensor.isfinite().all()]
    assert names == list(config.parameter_shapes())
    assert len(names) == 272
