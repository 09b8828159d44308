"""The RoPE table against published formulas and golden numbers: CK-01, CK-02, CK-06, CK-08, CK-09, LL-13.

The configs go through config.json's form (`config_from_hf`), so that what is read and what is computed are one test.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from litspec.model.config import RopeConfig
from litspec.model.hf_config import config_from_hf
from litspec.model.rope import attention_factor, inverse_frequencies, rope_table

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def rope_of(scaling: dict[str, Any] | None, *, key: str = "rope_scaling", **others: Any) -> RopeConfig:
    values = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
    values |= {"intermediate_size": 8, "vocab_size": 8, "max_position_embeddings": 64, key: scaling}
    return config_from_hf({**values, **others}, name="tiny").rope


@pytest.mark.parametrize("type_key", ["rope_type", "type"])
def test_llama3_has_the_golden_frequencies(type_key):
    rope = rope_of({type_key: "llama3", **LLAMA3}, rope_theta=10000.0)
    golden = [1, 0.2443846, 0.01304226, 0.003952847, 0.00125, 3.952847e-4, 1.25e-4, 3.952847e-5]
    np.testing.assert_allclose(inverse_frequencies(rope, 16).numpy(), golden, rtol=1e-6)


def test_both_spellings_of_the_rope_settings_mean_the_same():
    old = rope_of({"type": "llama3", **LLAMA3}, rope_theta=5e5)
    new = rope_of({"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}, key="rope_parameters")
    assert old == new
    assert old.theta == 5e5


@pytest.mark.parametrize("position", [0, 10, 60])
def test_llama3_is_not_linear_scaling(position):
    llama3 = rope_of({"rope_type": "llama3", **LLAMA3})
    linear = rope_of({"rope_type": "linear", "factor": 8.0})
    angles = [float(position * inverse_frequencies(rope, 16)[0]) for rope in (llama3, linear)]
    assert angles == [position, position / 8]
    cos_MD, sin_MD = rope_table(llama3, 16, 64)
    assert float(cos_MD[position, 0]) == pytest.approx(math.cos(position), abs=1e-12)
    assert float(sin_MD[position, 8]) == pytest.approx(math.sin(position), abs=1e-12)


def test_linear_turns_position_32_as_unscaled_turns_2():
    linear = rope_of({"type": "linear", "factor": 16})
    assert linear.factor == 16.0
    for scaled, unscaled in zip(rope_table(linear, 16, 64), rope_table(RopeConfig(), 16, 64), strict=True):
        torch.testing.assert_close(scaled[32], unscaled[2], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "multiplier"),
    [
        ({"factor": 16.0}, 1.2772589),
        ({"factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"factor": 4.0}, 1.1386294),
        ({"factor": 16.0, "mscale": 2.0}, 1.2772589),  # one field alone does not count
        ({"factor": 16.0, "mscale": 2.0, "mscale_all_dim": 1.0}, (0.2 * math.log(16) + 1) / (0.1 * math.log(16) + 1)),
        ({"factor": 16.0, "attention_factor": 1.0}, 1.0),
        ({"factor": 16.0, "attention_factor": 0.5}, 0.5),
        ({"factor": 16.0, "attention_factor": 0.5, "mscale": 1.0, "mscale_all_dim": 2.0}, 0.5),
    ],
)
def test_yarn_multiplies_cos_and_sin(settings, multiplier):
    rope = rope_of({"rope_type": "yarn", "original_max_position_embeddings": 64, **settings})
    assert attention_factor(rope) == pytest.approx(multiplier, rel=1e-7)
    cos_MD, sin_MD = rope_table(rope, 16, 64)
    torch.testing.assert_close(cos_MD**2 + sin_MD**2, torch.full((64, 16), multiplier**2, dtype=torch.float64))


def test_yarn_takes_a_missing_factor_from_the_two_contexts():
    rope = rope_of({"rope_type": "yarn", "original_max_position_embeddings": 16, "factor": None})
    assert rope.factor == 4.0  # 64 / 16


def test_original_context_beside_the_settings_goes_first_and_the_context_is_its_default():
    inside = {"rope_type": "llama3", **LLAMA3}
    assert rope_of(inside, original_max_position_embeddings=32).original_max_position == 32
    del inside["original_max_position_embeddings"]
    assert rope_of(inside, max_position_embeddings=128).original_max_position == 128


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("linear", {"factor": 4.0}),
        ("llama3", {**LLAMA3, "original_max_position_embeddings": 1024}),
        ("yarn", {"factor": 8.0, "original_max_position_embeddings": 1024, "beta_fast": 16.0, "beta_slow": 2.0}),
    ],
)
def test_frequencies_equal_transformers(kind, settings, truncate):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind == "yarn":
        settings = {**settings, "truncate": truncate}
    parameters = {"rope_type": kind, "rope_theta": 5e5, **settings}
    config = transformers.LlamaConfig(head_dim=128, max_position_embeddings=8192, rope_parameters=dict(parameters))
    theirs, factor = ROPE_INIT_FUNCTIONS[kind](config, device="cpu")
    ours = rope_of(parameters, key="rope_parameters", max_position_embeddings=8192)
    np.testing.assert_allclose(inverse_frequencies(ours, 128).numpy(), theirs.double().numpy(), rtol=2e-6)
    assert attention_factor(ours) == pytest.approx(factor)


def test_freq_factors_divide_each_frequency():
    rope = RopeConfig(freq_factors=(1.0, 2.0, 8.0, 8.0))
    expected = inverse_frequencies(RopeConfig(), 8) / torch.tensor([1.0, 2.0, 8.0, 8.0], dtype=torch.float64)
    torch.testing.assert_close(inverse_frequencies(rope, 8), expected)


@given(
    theta=st.sampled_from([1e4, 5e5, 1e6]),
    head_size=st.sampled_from([16, 64, 128]),
    scaling=st.sampled_from(["none", "linear", "llama3", "yarn"]),
)
@settings(max_examples=12, deadline=None)
def test_bfloat16_table_is_within_one_ulp_at_every_position(theta, head_size, scaling):
    # the reference is written with numpy from the frequencies; bfloat16 angles are off by radians at position 3000
    rope = RopeConfig(theta=theta, scaling=scaling, factor=4.0, original_max_position=1024)
    frequencies = inverse_frequencies(rope, head_size).numpy()
    angles = np.arange(3001, dtype=np.float64)[:, None] * np.concatenate([frequencies, frequencies])
    for ours, exact in zip(rope_table(rope, head_size, 3001), (np.cos(angles), np.sin(angles)), strict=True):
        reference = torch.from_numpy(exact * attention_factor(rope)).to(torch.bfloat16)
        ulp = 2.0 ** (torch.frexp(reference.float()).exponent - 8).float()
        assert bool(((ours.to(torch.bfloat16).float() - reference.float()).abs() <= ulp).all())


def test_unscaled_frequencies_are_those_of_the_paper():
    expected = [500000.0 ** (-2 * pair / 8) for pair in range(4)]
    assert inverse_frequencies(RopeConfig(theta=500000.0), 8).tolist() == pytest.approx(expected, rel=1e-14)
    cos_MD, sin_MD = rope_table(RopeConfig(theta=500000.0), 8, 5)
    assert cos_MD.dtype == sin_MD.dtype == torch.float64
    assert cos_MD[3].tolist() == pytest.approx([math.cos(3 * f) for f in expected * 2], rel=1e-14)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"scaling": "dynamic"}, "dynamic"),
        ({"theta": 0.0}, "theta"),
        ({"scaling": "linear", "factor": 0.0}, "factor"),
        ({"scaling": "llama3", "factor": 8.0}, "original_max_position"),
        ({"scaling": "llama3", "original_max_position": 8, "low_freq_factor": 4.0}, "low_freq_factor"),
        ({"scaling": "linear", "factor": 2.0, "freq_factors": (1.0,)}, "freq_factors"),
    ],
)
def test_a_rope_config_that_cannot_be_is_refused(values, named):
    with pytest.raises(ValueError, match=named):
        RopeConfig(**values)
