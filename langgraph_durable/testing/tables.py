"""Plain text tables: two journals side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from langgraph_durable.runs import Event, Step
from langgraph_durable.testing.passes import Aftermath
from langgraph_durable.values import readable

_WIDTH = 62


def side_by_side(calm: Aftermath, after: Aftermath) -> str:
    """Return the journals and the events of both runs, line beside line."""
    return "\n".join(
        [
            _table("journal, calm", "journal, crashed", *map(_steps, (calm, after))),
            "",
            _table("events, calm", "events, crashed", *map(_events, (calm, after))),
        ]
    )


def _table(left: str, right: str, lines: Sequence[str], others: Sequence[str]) -> str:
    rows: Iterable[tuple[str, str]] = [
        (left, right),
        ("-" * _WIDTH, "-" * _WIDTH),
        *zip_longest(lines, others, fillvalue=""),
    ]
    return "\n".join(f"{_fit(a)} | {_fit(b)}".rstrip() for a, b in rows)


def _fit(text: str) -> str:
    return text if len(text) > _WIDTH and "\n" in text else text[:_WIDTH].ljust(_WIDTH)


def _steps(seen: Aftermath) -> list[str]:
    return [_step(step) for step in seen.steps] or ["(empty)"]


def _step(step: Step) -> str:
    value = "" if step.value is None else readable(step.value, 40)
    return f"{step.seq:>2} e{step.epoch} {step.state.value:<8} {step.kind} {step.key} {value}"


def _events(seen: Aftermath) -> list[str]:
    return [_event(event) for event in seen.events]


def _event(event: Event) -> str:
    told = {k: v for k, v in event.data.items() if k in ("epoch", "key", "choice", "keys")}
    return f"{event.type} {readable(told, 40) if told else ''}".rstrip()
