"""Where a crash may come: the points of a run, and the life of a process that ends at one.

A run is lived by one process after the other. Each reaches points, before and after
everything that can be seen from outside; `Life` notes them, and the one that was planned
ends it. From then on nothing that this life tries has an effect: that is what makes an
exception in this process as good as a `kill -9`.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

When = Literal["before", "after"]


class Died(BaseException):
    """This life is over. If you see this, an `except` of yours catches too much."""


@dataclass(frozen=True, slots=True)
class Point:
    """A moment of a run: before or after something, for the n-th time."""

    when: When
    label: str
    nth: int = 1
    by_worker: bool = True  # reached by the worker, not by a client

    def __str__(self) -> str:
        """Name it."""
        return f"{self.when} {self.label}" + (f" (time {self.nth})" if self.nth > 1 else "")


@dataclass(frozen=True, slots=True)
class Called:
    """A call of a tool that came to its end, as the hub saw it."""

    tool: str
    key: str  # the step's
    idempotency_key: str | None  # None: the tool takes none
    arguments: str  # their digest
    effect: str
    result: str | None  # encoded; None: it failed


class Trace:
    """What a run was seen to do, over all its lives; with a path also in a file.

    Only a file outlives a process that is killed.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.points: list[Point] = []
        self.calls: list[Called] = []
        self.values: dict[str, str | None] = {}  # by step key: what was about to be recorded
        self.at = ""  # the time when the last point was reached
        self._counts: Counter[tuple[When, str]] = Counter()
        self._path = None
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                self._take(json.loads(line))
        self._path = path

    def reach(self, when: When, label: str, *, by_worker: bool, at: str = "") -> Point:
        """Note a point and return it."""
        point = Point(when, label, self._counts[when, label] + 1, by_worker)
        self._note({"point": asdict(point), "at": at})
        return point

    def call(self, call: Called) -> None:
        """Note a call of a tool."""
        self._note({"call": asdict(call)})

    def value(self, key: str, value: str | None) -> None:
        """Note what is about to be recorded for a step."""
        self._note({"key": key, "value": value})

    def _note(self, line: dict[str, Any]) -> None:
        self._take(line)
        if self._path is not None:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(descriptor, (json.dumps(line) + "\n").encode())
            finally:
                os.close(descriptor)

    def _take(self, line: dict[str, Any]) -> None:
        if "point" in line:
            point = Point(**line["point"])
            self.points.append(point)
            self._counts[point.when, point.label] = point.nth
            self.at = line["at"] or self.at
        elif "call" in line:
            self.calls.append(Called(**line["call"]))
        else:
            self.values[line["key"]] = line["value"]


class Life:
    """The life of one process, which ends (or stops for a while) at a planned point."""

    def __init__(
        self,
        trace: Trace,
        fault: Point | None = None,
        end: Callable[[Life], None] | None = None,
        now: Callable[[], str] = str,
    ) -> None:
        self.trace, self.fault = trace, fault
        self.has_landed = False
        self.is_dead = False
        self.has_stopped = threading.Event()
        self.on_death: Callable[[], None] | None = None
        self.closing: set[asyncio.Future[Any]] = set()  # what its loop waits for at its end
        self._end = end
        self._now = now
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._lock = threading.Lock()
        self._worker_threads = 0

    def check(self) -> None:
        """Let the code go on if this life does.

        Raises:
            Died: it is over.
        """
        self._may_go_on.wait()
        if self.is_dead:
            raise Died

    def reach(self, when: When, label: str, *, by_worker: bool = True) -> None:
        """Note a point; end here if it is the planned one.

        Raises:
            Died: this life is over.
        """
        self.check()
        with self._lock:
            point = self.trace.reach(when, label, by_worker=by_worker, at=self._now())
            is_planned = point == self.fault and not self.has_landed
            self.has_landed = self.has_landed or is_planned
        if is_planned and self._end is not None:
            self._end(self)

    @contextmanager
    def around(self, label: str, *, by_worker: bool = True) -> Iterator[None]:
        """Note the points before and after what is done inside; those within it are not."""
        if _inside.get():
            self.check()
            yield
            return
        self.reach("before", label, by_worker=by_worker)
        token = _inside.set(True)
        try:
            yield
        finally:
            _inside.reset(token)
        self.reach("after", label, by_worker=by_worker)

    def crash(self) -> None:
        """End this life.

        Raises:
            Died: always.
        """
        self.is_dead = True
        if self.on_death is not None:
            self.on_death()
        raise Died

    def stop(self) -> None:
        """Stand still, with everything of this life, until `go_on` (as after SIGSTOP)."""
        self._may_go_on.clear()
        self.has_stopped.set()
        self._may_go_on.wait()

    def go_on(self) -> None:
        """End a stop (as after SIGCONT)."""
        self._may_go_on.set()


_life: ContextVar[Life | None] = ContextVar("langgraph_durable_testing_life", default=None)
_inside: ContextVar[bool] = ContextVar("langgraph_durable_testing_inside", default=False)


@contextmanager
def living(life: Life) -> Iterator[None]:
    """Make this the life of the code that is called inside."""
    token = _life.set(life)
    try:
        yield
    finally:
        _life.reset(token)


@contextmanager
def acting(label: str) -> Iterator[None]:
    """Let a crash come before and after what is done inside.

    For fakes of your own that a node calls directly. Outside of `crash_everywhere` it does
    nothing; inside a tool or a model that the runtime calls it adds no points.
    """
    life = _life.get()
    if life is None:
        yield
        return
    with life.around(label):
        yield
