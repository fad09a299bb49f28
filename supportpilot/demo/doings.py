"""Who did what: the model calls and tool calls of a story, each with its worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from supportpilot.billing.records import Call
from supportpilot.demo.story import Story

STEPS = ("classify", "list_invoices", "choose", "refund", "draft")
_CLAIMS = ("run_claimed", "run_taken_over")


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker took the run."""

    at: datetime
    worker: str
    epoch: int
    from_worker: str | None  # the worker whose lease ran out


@dataclass(frozen=True, slots=True)
class Doing:
    """A call that left a worker, as the other side logged it."""

    at: datetime
    step: str
    worker: str
    what: str
    call: Call | None = None  # None: a model call


def claims(story: Story) -> list[Claim]:
    """Read from the audit who had the run, and under which epoch."""
    return [
        Claim(event.at, event.actor, event.data["epoch"], event.data.get("from"))
        for event in story.events
        if event.type in _CLAIMS
    ]


def doings(story: Story) -> list[Doing]:
    """Read every call from the model's and the billing system's own logs."""
    return sorted([*_model_calls(story), *_tool_calls(story)], key=lambda doing: doing.at)


def _model_calls(story: Story) -> Iterator[Doing]:
    for line in story.model_calls:
        worker = story.workers.get(line["pid"], f"process {line['pid']}")
        what = f"asks the model ({line['route']})"
        yield Doing(datetime.fromisoformat(line["at"]), line["job"], worker, what)


def _tool_calls(story: Story) -> Iterator[Doing]:
    held = claims(story)
    for call in story.billing_calls:
        step = "refund" if call.tool == "create_refund" else call.tool
        at = datetime.fromisoformat(call.at)
        what = f"calls billing.{call.tool}"
        yield Doing(at, step, _owner(held, call, at), what, call)


def _owner(held: Sequence[Claim], call: Call, at: datetime) -> str:
    if call.fencing_token is not None:  # it says itself under which claim it was made
        return next((c.worker for c in held if c.epoch == call.fencing_token), "unknown")
    return next((c.worker for c in reversed(held) if c.at <= at), "unknown")
