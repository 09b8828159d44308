"""MemoryPlan: the bytes it counts are those that are taken, and what does not fit is refused with what would."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from litspec.api.memory import MemoryPlan, readable
from litspec.model.config import Config
from litspec.model.debug import DEBUG_DRAFT, DEBUG_TARGET
from litspec.model.gpt import GPT
from litspec.model.placement import DTYPES, empty_modules
from tests.model.tiny_gpt import TINY

MIB = 2**20
LARGE = Config(
    name="large",
    n_layer=32,
    n_head=32,
    n_query_groups=8,
    head_size=128,
    n_embd=4096,
    intermediate_size=14336,
    vocab_size=128256,
    block_size=131072,
)
SMALL = replace(LARGE, name="small", n_layer=16, n_embd=2048, head_size=64, tie_embeddings=True, block_size=1024)


def plan_of(target: Config = LARGE, draft: Config | None = None, **settings: Any) -> MemoryPlan:
    """Plan with these settings, by default for bfloat16, 8 slots of the usual context and 64 GiB."""
    given = {
        "dtype": torch.bfloat16,
        "num_slots": 8,
        "max_seq_length": None,
        "num_draft_tokens": 7,
        "device": "cpu",
        "available_bytes": 65536 * MIB,
    }
    return MemoryPlan.of(target, draft, **{**given, **settings})


def refusal_of(*models: Config, **settings: Any) -> str:
    with pytest.raises(ValueError, match="the memory does not suffice") as refused:
        plan_of(*models, **settings)
    return str(refused.value)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("config", [DEBUG_TARGET, TINY, replace(TINY, tie_embeddings=True, has_qkv_bias=True)])
def test_bytes_are_those_of_the_tensors(dtype, config):
    context = min(config.block_size, 96)
    plan = plan_of(config, config, dtype=dtype, num_slots=3, max_seq_length=context)
    with empty_modules(torch.device("cpu"), dtype):
        gpt = GPT(config, max_seq_length=context)
    tensors = [*gpt.parameters(), *gpt.buffers()]
    assert plan.weight_bytes == sum(t.numel() * t.element_size() for t in tensors)
    assert plan.cache_bytes == gpt.new_cache(3).num_bytes
    assert (plan.draft_weight_bytes, plan.draft_cache_bytes) == (plan.weight_bytes, plan.cache_bytes)


def test_figures_of_a_known_model():
    """Llama 3.1 8B: 8.03 billion parameters, 128 KiB of cache a token in bfloat16."""
    plan = plan_of(max_seq_length=8192)
    assert plan.weight_bytes == pytest.approx(8.03e9 * 2, rel=0.001)
    assert plan.cache_bytes == 9 * 8192 * 128 * 1024
    assert plan.needed_bytes == plan.weight_bytes + plan.cache_bytes + plan.working_bytes
    assert plan.to_dict()["cache_bytes"] == 9663676416
    assert plan.to_dict()["available_bytes"] == 65536 * MIB


def test_draft_has_no_more_than_its_own_context():
    plan = plan_of(LARGE, SMALL, max_seq_length=4096)
    assert plan.draft_cache_bytes == 9 * 1024 * 16 * 8 * 64 * 2 * 2
    assert plan.draft_weight_bytes == pytest.approx(plan_of(SMALL, max_seq_length=1024).weight_bytes)


def test_line_for_people():
    plan = plan_of(DEBUG_TARGET, DEBUG_DRAFT, dtype=torch.float32)
    assert str(plan) == (
        "target 0.9 MiB weights and 18.0 MiB cache + draft 0.7 MiB weights and 9.0 MiB cache, of 64.0 GiB free"
    )
    assert "draft" not in str(plan_of(DEBUG_TARGET))


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0.0 MiB"), (1536 * 1024, "1.5 MiB"), (10 * 2**30, "10.0 GiB"), (-MIB, "-1.0 MiB")]
)
def test_readable(num_bytes, text):
    assert readable(num_bytes) == text


# What does not fit


def test_a_plan_fits_to_the_byte():
    plan = plan_of(DEBUG_TARGET, available_bytes=600 * MIB)
    exact = replace(plan, available_bytes=plan.needed_bytes)
    assert exact.fits
    assert not replace(exact, available_bytes=exact.available_bytes - 1).fits


def test_refusal_has_every_number():
    message = refusal_of(LARGE, SMALL, max_seq_length=65536, available_bytes=40960 * MIB)
    plan = MemoryPlan(LARGE, SMALL, torch.bfloat16, 8, 65536, 7, "cpu", 40960 * MIB)
    for num_bytes in (*plan.to_dict().values(), plan.needed_bytes):
        assert readable(num_bytes) in message
    assert "target large" in message and "draft small" in message
    assert "(8 slots and one for padding, 65536 tokens each)" in message
    assert "cpu has 40.0 GiB free" in message


@pytest.mark.parametrize("available", [18, 20, 24, 30, 40])
@pytest.mark.parametrize(("slots", "context"), [(64, 8192), (8, 131072), (1000, 4096)])
def test_what_is_advised_fits_and_is_the_most(available, slots, context):
    settings: dict[str, Any] = {"available_bytes": available * 1024 * MIB}
    message = refusal_of(num_slots=slots, max_seq_length=context, **settings)
    found = re.findall(r"max_batch_size (\d+) with max_seq_length (\d+)", message)
    found += [(b, m) for m, b in re.findall(r"max_seq_length (\d+) with max_batch_size (\d+)", message)]
    assert found
    for rows, tokens in [(int(b), int(m)) for b, m in found]:
        assert plan_of(num_slots=rows, max_seq_length=tokens, **settings).fits
        changed = (rows + 1, tokens) if rows != slots and tokens == context else (rows, tokens + 64)
        refusal_of(num_slots=changed[0], max_seq_length=changed[1], **settings)


def test_advice_changes_both_where_one_alone_does_not_help():
    message = refusal_of(num_slots=1000, max_seq_length=131072, available_bytes=17 * 1024 * MIB)
    assert re.search(r"At most max_batch_size 1 with max_seq_length \d+, would fit; or take a smaller model$", message)


def test_a_model_that_never_fits():
    message = refusal_of(dtype=torch.float32, available_bytes=8 * 1024 * MIB)
    assert message.endswith("No number of slots fits: take a smaller model, or dtype bfloat16, or free memory")
    assert "max_batch_size" not in message
    assert "or dtype" not in refusal_of(available_bytes=8 * 1024 * MIB)
    assert "one slot and one for padding" in refusal_of(num_slots=1, available_bytes=0)


def test_a_wider_window_and_more_slots_need_more_room_to_work():
    plan = plan_of(DEBUG_TARGET)
    assert replace(plan, num_slots=9).working_bytes > plan.working_bytes
    drawing = replace(plan, target=replace(LARGE, n_layer=1, vocab_size=10**6))
    assert replace(drawing, num_draft_tokens=63).working_bytes > drawing.working_bytes
    assert plan.working_bytes >= 0.05 * plan.available_bytes
    assert replace(plan, available_bytes=0).working_bytes >= 256 * MIB


# The context that is chosen


@pytest.mark.parametrize(("block_size", "context"), [(131072, 2048), (2048, 2048), (1000, 1000), (100, 100), (2, 2)])
def test_with_room_it_is_2048_or_the_models_own(block_size, context):
    assert plan_of(replace(LARGE, block_size=block_size)).max_seq_length == context


@pytest.mark.parametrize(
    ("block_size", "contexts"),
    [
        (131072, [2048, 1024, 512, 256]),
        (1000, [1000, 448, 256]),
        (700, [700, 320, 256]),
        (300, [300, 256]),
        (256, [256]),
    ],
)
def test_it_is_halved_as_memory_gets_short_and_ends_at_256(block_size, contexts):
    config = replace(LARGE, block_size=block_size)
    found: list[int] = []
    for available in range(28 * 1024, 15 * 1024, -16):
        try:
            plan = plan_of(config, num_slots=16, available_bytes=available * MIB)
        except ValueError:
            break
        if not found or found[-1] != plan.max_seq_length:
            found.append(plan.max_seq_length)
        left = plan.available_bytes - plan.weight_bytes
        assert plan.max_seq_length == contexts[-1] or 2 * plan.cache_bytes <= left
    else:
        pytest.fail("nothing was refused")
    assert found == contexts
    refusal = refusal_of(config, num_slots=16, available_bytes=available * MIB)
    assert f"{contexts[-1]} tokens each" in refusal


def test_a_draft_counts_in_the_choice():
    room = {"num_slots": 16, "available_bytes": 34 * 1024 * MIB}
    assert plan_of(**room).max_seq_length == 2048
    assert plan_of(LARGE, replace(SMALL, n_layer=64), **room).max_seq_length < 2048


def test_what_is_given_is_kept_or_refused():
    assert plan_of(max_seq_length=131072, num_slots=1).max_seq_length == 131072
    assert plan_of(max_seq_length=2).max_seq_length == 2
    with pytest.raises(ValueError, match="max_seq_length was 131073; large was trained for 131072 positions"):
        plan_of(max_seq_length=131073)
    refusal_of(max_seq_length=2048, num_slots=64, available_bytes=24 * 1024 * MIB)
