"""SlotPool: the lowest free slot first, never one twice, and misuse is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litspec.kvcache import SlotPool


def test_hands_out_the_lowest_free_slot():
    pool = SlotPool(3)
    assert [pool.acquire() for _ in range(3)] == [0, 1, 2]
    assert pool.num_free == 0
    pool.release(2)
    pool.release(0)
    assert [pool.acquire(), pool.acquire()] == [0, 2]


@given(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=40))
def test_a_slot_has_one_owner_at_a_time(num_slots, actions):
    pool, owned = SlotPool(num_slots), set()
    for action in actions:
        if action in owned:
            pool.release(action)
            owned.remove(action)
        elif pool.num_free:
            slot = pool.acquire()
            assert slot == min(set(range(num_slots)) - owned)
            owned.add(slot)
        assert pool.num_free == num_slots - len(owned)


@pytest.mark.parametrize("num_slots", [0, -1])
def test_a_pool_without_slots_is_refused(num_slots):
    with pytest.raises(ValueError, match=f"num_slots was {num_slots}; at least one is needed"):
        SlotPool(num_slots)


def test_misuse_is_noticed():
    pool = SlotPool(2)
    for slot in (0, 2, -1):
        with pytest.raises(AssertionError, match=f"slot {slot} is not owned"):
            pool.release(slot)
    pool.acquire(), pool.acquire()
    with pytest.raises(AssertionError, match="no free slot"):
        pool.acquire()
