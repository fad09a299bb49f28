"""Python's search for cyclic garbage, as a process wants it that drives many runs at once.

By default it looks after each 700 objects. Fifty runs that wait for their steps hold more
than that at any time, so it would search young objects that all live, and now and then the
whole heap with every module in it, which stops the loop for a tenth of a second.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 10_000  # new ones between two searches, at least


@contextmanager
def searched_seldom() -> Iterator[None]:
    """Search after more objects, and never among what was there before; undone at the end.

    An application that has switched the search off, or made it rarer still, is left alone,
    and what it has frozen stays so.
    """
    _servers.enter()
    try:
        yield
    finally:
        _servers.leave()


class _Servers:
    """Workers may serve in threads of one process, which has one heap: the last undoes it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._serving = 0
        self._thresholds: tuple[int, int, int] | None = None  # as they were, if we changed them
        self._froze = False

    def enter(self) -> None:
        """Count a worker in."""
        with self._guard:
            self._serving += 1
            thresholds = gc.get_threshold()
            if self._serving > 1 or not gc.isenabled() or thresholds[0] == 0:
                return
            self._froze = gc.get_freeze_count() == 0  # what is frozen can't be told apart later
            if self._froze:
                gc.freeze()
            if thresholds[0] < OBJECTS:
                gc.set_threshold(OBJECTS, *thresholds[1:])
            self._thresholds = thresholds

    def leave(self) -> None:
        """Count a worker out."""
        with self._guard:
            self._serving -= 1
            if self._serving or self._thresholds is None:
                return
            gc.set_threshold(*self._thresholds)
            if self._froze:
                gc.unfreeze()
            self._thresholds, self._froze = None, False


_servers = _Servers()
