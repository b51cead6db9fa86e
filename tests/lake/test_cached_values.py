"""Values that are computed on first use."""

from __future__ import annotations

import threading

from lake_assets.lake.cached_values import cached_value


class Asked:
    def __init__(self, both: threading.Barrier) -> None:
        self.both, self.times = both, 0

    @cached_value
    def answer(self) -> int:
        """What there is to know."""
        self.both.wait()
        self.times += 1
        return self.times


def test_a_value_is_computed_once_per_object_and_objects_do_not_wait_for_each_other() -> None:
    both, values = threading.Barrier(2, timeout=60), list[int]()
    objects = [Asked(both), Asked(both)]
    threads = [threading.Thread(target=lambda o=o: values.append(o.answer)) for o in objects]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [1, 1]
    assert [(o.answer, o.times) for o in objects] == [(1, 1), (1, 1)]
    assert Asked.answer.__doc__ == "What there is to know."
