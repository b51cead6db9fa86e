"""Values that are computed on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class cached_value(Generic[Value]):
    """`functools.cached_property` without its lock.

    Before Python 3.12, all objects of a class share that lock: while Spark computes the value of one object, steps in
    other threads would wait for theirs. Use it only for objects that belong to one thread.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: Any) -> cached_value[Value]: ...

    @overload
    def __get__(self, instance: object, owner: Any) -> Value: ...

    def __get__(self, instance: object | None, owner: Any) -> cached_value[Value] | Value:
        if instance is None:
            return self
        value = self._compute(instance)
        # From now on Python finds this attribute of the object, which comes before a descriptor without __set__.
        vars(instance)[self._name] = value
        return value
