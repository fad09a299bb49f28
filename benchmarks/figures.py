"""A figure of the report: what was measured, what it should be, and what it is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.measure import Bench, Series


@dataclass(frozen=True, slots=True)
class Goal:
    """At least, at most, or below a number."""

    relation: Literal["≥", "≤", "<"]
    number: float

    def holds(self, value: float) -> bool:
        """Whether a value reaches the goal."""
        if self.relation == "≥":
            return value >= self.number
        return value < self.number if self.relation == "<" else value <= self.number

    def __str__(self) -> str:
        return f"{self.relation} {self.number:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    key: str
    what: str
    value: float | None
    goal: Goal | None = None
    unit: str = ""
    beside: str = ""  # the absolute figures

    @property
    def verdict(self) -> str:
        """Say whether the goal is reached."""
        if self.value is None:
            return "not measured"
        if self.goal is None:
            return ""
        return "reached" if self.goal.holds(self.value) else "MISSED"


@dataclass(slots=True)
class Curve:
    """Points of a plot: how something grows."""

    key: str
    title: str
    across: str
    up: str
    points: list[tuple[float, float]] = field(default_factory=list)


def at_least(number: float) -> Goal:
    """Make a goal."""
    return Goal("≥", number)


def at_most(number: float) -> Goal:
    """Make a goal."""
    return Goal("≤", number)


def below(number: float) -> Goal:
    """Make a goal."""
    return Goal("<", number)


def against_limit(ours: Series | None, limit: Series | None) -> float | None:
    """Return by how much `limit` is slower: the middle of the rounds, each compared in itself."""
    if ours is None or limit is None:
        return None
    pairs = zip(limit.seconds, ours.seconds, strict=False)
    return statistics.median(theirs / mine for theirs, mine in pairs) * ours.work / limit.work


def against_peers(ours: Series | None, peers: Sequence[Series | None]) -> float | None:
    """Return by how much the fastest peer, at its fastest, is slower than ours in the middle."""
    found = [peer.best for peer in peers if peer is not None]
    if ours is None or not found:
        return None
    return min(found) / ours.median


def rates(bench: Bench, label: str, systems: Sequence[str], unit: str) -> str:
    """Return the absolute figures of systems, for people."""
    told = []
    for system in systems:
        series = bench.of(system, label)
        told.append(f"{system} {series.rate:,.0f}" if series else f"{system} –")
    return f"{', '.join(told)} {unit}"


def times(bench: Bench, label: str, systems: Sequence[str], unit: str = "ms") -> str:
    """Return the milliseconds a unit of work of systems, for people."""
    told = []
    for system in systems:
        series = bench.of(system, label)
        told.append(f"{system} {series.median * 1000:.2f}" if series else f"{system} –")
    return f"{', '.join(told)} {unit}"
