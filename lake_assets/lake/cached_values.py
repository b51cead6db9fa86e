"""Values that are computed on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class cached_value(Generic[Value]):
    """`functools.cached_property` without its lock.

    Before Python 3.12 that is one for all objects of a class: while Spark computes the value of one, the steps in other
    threads would wait for theirs. An object that is used by one thread needs none.
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
        found = self._compute(instance)
        # Where it is found from now on: attributes of the object come before those of the class that cannot be set.
        vars(instance)[self._name] = found
        return found
