"""Ask systems for the same job in turn, A B A B …, and keep every figure."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_SECONDS = 180.0


class Unavailable(Exception):
    """A system can't be installed, started, or did not do the work."""


class Child:
    """One system in a process of its own."""

    def __init__(self, name: str, url: str, logs: Path) -> None:
        self.name, self.url = name, url
        self.log = logs / f"{name}.log"
        self._err: IO[bytes] = self.log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.child", name, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._err,
            cwd=ROOT,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def ask(self, job: str, **request: Any) -> dict[str, Any]:
        """Have a job done; returns what it answered.

        Raises:
            Unavailable: it failed or took too long.
        """
        self.tell(job, **request)
        return self.answer()

    def tell(self, job: str, **request: Any) -> None:
        """Start a job, without waiting for its answer."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"job": job, **request}).encode() + b"\n")
            stdin.flush()
        except OSError as error:
            raise Unavailable(f"{self.name}: {self._last_words()}") from error

    def answer(self) -> dict[str, Any]:
        """Return the answer of the job that was started."""
        stdout = self._process.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], PATIENCE_SECONDS)
        line = stdout.readline() if ready else b""
        if not line:
            said = self._last_words() if ready else f"no answer in {PATIENCE_SECONDS:g} s"
            self._process.kill()
            raise Unavailable(f"{self.name}: {said}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise Unavailable(f"{self.name}: {found['error']}")
        return found

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended"

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._err.close()


@dataclass(slots=True)
class Series:
    """The seconds of one job of one system, one figure a repetition, with how much it did."""

    system: str
    job: str
    work: int
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds a unit of work, in the middle."""
        return statistics.median(self.seconds) / self.work

    @property
    def best(self) -> float:
        """Seconds a unit of work, at its fastest."""
        return min(self.seconds) / self.work

    @property
    def rate(self) -> float:
        """Units of work a second, in the middle."""
        return 1.0 / self.median


@dataclass(slots=True)
class Turn:
    """What one system does when it is its turn."""

    system: str
    job: str
    request: dict[str, Any]
    work: int  # units: nodes, steps or runs
    every: int = 1  # slow ones take part in each n-th round only
    warm: dict[str, Any] | None = None  # what the uncounted round asks for instead


class Bench:
    """The systems under test, started when they are first needed."""

    def __init__(self, fresh: Callable[[str], str], logs: Path, say: Callable[[str], None]) -> None:
        self._fresh, self._logs, self.say = fresh, logs, say
        self._children: dict[str, Child] = {}
        self.missing: dict[str, str] = {}  # system -> why it has no figures
        self.series: dict[tuple[str, str], Series] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def child(self, name: str) -> Child:
        """Return a running system; its database is fresh, by the end of its name."""
        if name not in self._children:
            kind = "sqlite" if name.endswith("sqlite") else "postgres"
            self._children[name] = Child(name, self._fresh(kind), self._logs)
        return self._children[name]

    def take_turns(self, turns: Sequence[Turn], rounds: int, *, warm: bool = True) -> None:
        """Give each system its turn, round after round; the first, uncounted one warms up."""
        for number in range(-1 if warm else 0, rounds):
            for turn in turns:
                if turn.system in self.missing or (number >= 0 and number % turn.every):
                    continue
                try:
                    took = self._take(turn, number)
                except Unavailable as error:
                    self.missing[turn.system] = str(error)
                    self.say(f"  {turn.system} is out: {error}")
                    self.close(turn.system)
                    continue
                if number >= 0:
                    self._note(turn, took)

    def _take(self, turn: Turn, number: int) -> dict[str, Any]:
        started = time.perf_counter()
        request = turn.warm if number < 0 and turn.warm is not None else turn.request
        took = self.child(turn.system).ask(turn.job, **request)
        if number < 0 and time.perf_counter() - started > 20:
            self.say(f"  {turn.system} warmed up in {time.perf_counter() - started:.0f} s")
        return took

    def _note(self, turn: Turn, took: dict[str, Any]) -> None:
        label = turn.job + "".join(f" {value}" for value in turn.request.values())
        known = self.series.setdefault((turn.system, label), Series(turn.system, label, turn.work))
        known.seconds.append(took["seconds"])

    def ask(self, system: str, job: str, **request: Any) -> dict[str, Any] | None:
        """Have one job done, outside of turns; None if the system is out."""
        if system in self.missing:
            return None
        try:
            return self.child(system).ask(job, **request)
        except Unavailable as error:
            self.missing[system] = str(error)
            self.say(f"  {system} is out: {error}")
            self.close(system)
            return None

    def of(self, system: str, label: str) -> Series | None:
        """Return the figures of a system, if it has any."""
        return self.series.get((system, label))

    def close(self, name: str | None = None) -> None:
        """End one system, or all."""
        for known in [name] if name is not None else list(self._children):
            child = self._children.pop(known, None)
            if child is not None:
                child.close()
