"""SlotPool: which cache rows are free. It knows numbers only; the engine decides who gets one."""

from __future__ import annotations


class SlotPool:
    """Hands out the slots 0 … num_slots - 1, the lowest free one first.

    Args:
        num_slots: how many there are.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots was {num_slots}; at least one is needed")
        self.num_slots = num_slots
        self._free = set(range(num_slots))

    @property
    def num_free(self) -> int:
        """Slots that nobody owns."""
        return len(self._free)

    def acquire(self) -> int:
        """Take the lowest free slot; asserts that there is one."""
        assert self._free, "no free slot: ask num_free first"
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back; asserts that it was taken."""
        assert 0 <= slot < self.num_slots and slot not in self._free, f"slot {slot} is not owned"
        self._free.add(slot)
