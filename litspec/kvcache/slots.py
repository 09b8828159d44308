"""SlotPool: which cache rows are free. It knows numbers only; the engine decides who gets one, and which."""

from __future__ import annotations


class SlotPool:
    """Keeps the slots 0 … num_slots - 1.

    Args:
        num_slots: how many there are.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots was {num_slots}; at least one is needed")
        self.num_slots = num_slots
        self._free = dict.fromkeys(range(num_slots))

    @property
    def num_free(self) -> int:
        """Slots that nobody owns."""
        return len(self._free)

    @property
    def free(self) -> list[int]:
        """The slots that nobody owns, the one that was given back longest ago first."""
        return list(self._free)

    def acquire(self, slot: int) -> None:
        """Take a slot; asserts that it is free."""
        assert slot in self._free, f"slot {slot} is not free"
        del self._free[slot]

    def release(self, slot: int) -> None:
        """Give a slot back; asserts that it was taken."""
        assert 0 <= slot < self.num_slots and slot not in self._free, f"slot {slot} is not owned"
        self._free[slot] = None
