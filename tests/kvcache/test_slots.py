"""SlotPool: each slot has one owner at a time, the free ones stand in the order they came back, misuse is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litspec.kvcache import SlotPool


def test_free_slots_stand_in_the_order_in_which_they_were_given_back():
    pool = SlotPool(3)
    assert pool.free == [0, 1, 2]
    for slot in (1, 0, 2):
        pool.acquire(slot)
    assert pool.num_free == 0
    pool.release(2)
    pool.release(0)
    assert pool.free == [2, 0]


@given(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=40))
def test_a_slot_has_one_owner_at_a_time(num_slots, actions):
    pool, owned = SlotPool(num_slots), set()
    for action in actions:
        if action in owned:
            pool.release(action)
            owned.remove(action)
        elif action < num_slots:
            pool.acquire(action)
            owned.add(action)
        assert pool.num_free == num_slots - len(owned)
        assert set(pool.free) == set(range(num_slots)) - owned


@pytest.mark.parametrize("num_slots", [0, -1])
def test_a_pool_without_slots_is_refused(num_slots):
    with pytest.raises(ValueError, match=f"num_slots was {num_slots}; at least one is needed"):
        SlotPool(num_slots)


def test_misuse_is_noticed():
    pool = SlotPool(2)
    for slot in (0, 2, -1):
        with pytest.raises(AssertionError, match=f"slot {slot} is not owned"):
            pool.release(slot)
    pool.acquire(1)
    for slot in (1, 2):
        with pytest.raises(AssertionError, match=f"slot {slot} is not free"):
            pool.acquire(slot)
