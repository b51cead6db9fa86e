"""A cache of the most recently used values, limited by their size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LimitedCache(Generic[Key, Value]):
    """Values that never change, shared by all threads of a process."""

    def __init__(self, most: int, size_of: Callable[[Value], int]) -> None:
        """Keep values with a size of at most `most` in total; the last one added stays, however large it is."""
        self._most, self._size_of, self._size = most, size_of, 0
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """Return a value; None if it is not cached."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Key, value: Value) -> Value:
        """Cache a value, and return it."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._size += self._size_of(value)
            while self._size > self._most and len(self._values) > 1:
                self._size -= self._size_of(self._values.popitem(last=False)[1])
        return value

    def __len__(self) -> int:
        return len(self._values)
