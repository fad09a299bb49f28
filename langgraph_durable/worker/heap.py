"""Python's search for cyclic garbage, as a process wants it that drives many runs at once.

By default it looks after each 700 objects. Fifty runs that wait for their steps hold more
than that at any time, so it would search young objects that all live, and now and then the
whole heap with every module in it, which stops the loop for a tenth of a second.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 10_000  # new ones between two searches, at least


@contextmanager
def searched_seldom() -> Iterator[None]:
    """Search after more objects, and never among what was there before; undone at the end.

    An application that has switched the search off, or made it rarer still, is left alone.
    """
    young, *older = gc.get_threshold()
    if not gc.isenabled() or young == 0:
        yield
        return
    gc.freeze()
    gc.set_threshold(max(young, OBJECTS), *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
        gc.unfreeze()
