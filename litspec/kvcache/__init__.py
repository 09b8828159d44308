"""The key/value cache and its slots."""

from litspec.kvcache.cache import KVCache
from litspec.kvcache.slots import SlotPool

__all__ = ["KVCache", "SlotPool"]
