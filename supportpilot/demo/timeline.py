"""What happened, in order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from supportpilot.demo.doings import Doing, doings
from supportpilot.demo.story import Story

Line = tuple[datetime, str, str]

_SAYS = {
    "run_submitted": "the ticket is submitted",
    "run_claimed": "claims the run (epoch {epoch})",
    "run_taken_over": "takes the run over from {from}, whose lease ran out (epoch {epoch})",
    "question_asked": "asks for approval: {asked}",
    "run_parked": "parks the run: a row in the database, no worker holds it",
    "question_decided": "decides: {choice}",
    "run_resumed": "the run is queued again",
    "run_requeued": "gives the run back after an error",
    "run_succeeded": "the run has succeeded",
    "run_failed": "the run has failed",
}


def show(story: Story, console: Console) -> None:
    """Print the timeline of a story."""
    table = Table(title=f"{story.mode} mode: {story.run.agent}", box=box.SIMPLE, expand=False)
    table.add_column("seconds", justify="right")
    table.add_column("who", no_wrap=True)
    table.add_column("what")
    lines = sorted(_lines(story), key=lambda line: line[0])
    for at, who, what in lines:
        seconds = (at - lines[0][0]).total_seconds()
        style = "bold red" if "SIGKILL" in what else None
        table.add_row(f"{seconds:.2f}", who, what, style=style)
    console.print(table)


def _lines(story: Story) -> Iterator[Line]:
    for event in story.events:
        if event.type in _SAYS:
            known = {"from": "?", **event.data}
            # an interrupt of LangGraph's knows no tool, but it knows its place
            known["asked"] = known.get("tool") or f"by interrupt() in {known.get('key')}"
            yield event.at, _who(event), _SAYS[event.type].format_map(known)
    for doing in doings(story):
        yield doing.at, doing.worker, f"{doing.step}: {doing.what}{_answer(doing)}"
    for kill in story.kills:
        yield kill.at, kill.worker, f"SIGKILL {kill.moment}"
    for at in story.ignored_clicks:
        yield at, "supervisor", "clicks approve once more: already decided, nothing changes"


def _answer(doing: Doing) -> str:
    call = doing.call
    if call is None or call.idempotency_key is None:
        return ""
    key = f"key …:{call.idempotency_key.partition(':')[2]}"
    return f" ({key}, token {call.fencing_token}, call no. {call.attempt}): {call.outcome}"


def _who(event: Any) -> str:
    if event.type == "question_decided":
        return f"supervisor {event.actor}"
    return str(event.actor)
