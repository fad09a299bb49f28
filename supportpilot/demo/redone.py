"""Which steps were redone, which were answered without a call, and why."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from supportpilot.demo.doings import STEPS, Doing, claims, doings
from supportpilot.demo.story import Story

_KEPT = {"steps": "journal", "graph": "checkpoint"}


def show(story: Story, console: Console) -> None:
    """Print who did which step, and a reason for each."""
    workers = list(dict.fromkeys(claim.worker for claim in claims(story)))
    killed = {kill.worker for kill in story.kills}
    table = Table(box=box.SIMPLE, expand=False)
    table.add_column("step")
    for worker in workers:
        table.add_column(f"{worker} ☠" if worker in killed else worker)
    table.add_column("why", overflow="fold")
    done = doings(story)
    for step in STEPS:
        made = [doing for doing in done if doing.step == step]
        cells = [_cell(story, step, made, workers, worker) for worker in workers]
        table.add_row(step, *cells, _why(story, step, made))
    console.print(table)


def _cell(
    story: Story, step: str, made: Sequence[Doing], workers: Sequence[str], worker: str
) -> str:
    here = [doing for doing in made if doing.worker == worker]
    if here:
        outcome = here[-1].call.outcome if here[-1].call else "model"
        said = {"answered": "called"}.get(outcome, outcome)
        is_lost = made[-1].worker != worker
        return f"{said}, lost" if is_lost else said
    if step == "refund" and worker in _askers(story):
        return "asks"
    earlier = [doing for doing in made if workers.index(doing.worker) < workers.index(worker)]
    return _KEPT[story.mode] if earlier else ""


def _askers(story: Story) -> set[str]:
    return {event.actor for event in story.events if event.type == "question_asked"}


def _why(story: Story, step: str, made: Sequence[Doing]) -> str:
    if not made:
        return "never called"
    recorded = _recorded(story, step)
    if len(made) == 1:
        return f"called once; {recorded}"
    lost = ", ".join(doing.worker for doing in made[:-1])
    reason = f"{lost} died after the call and before its record, so it was called again"
    call = made[-1].call
    if call is None:
        return f"{reason}; {recorded}"
    if call.idempotency_key is None:
        return f"{reason}: a read may be; {recorded}"
    return (
        f"{reason}, with the same key: billing answered {call.outcome!r} with the first "
        f"receipt and paid nothing; {recorded}"
    )


def _recorded(story: Story, step: str) -> str:
    workers = {claim.epoch: claim.worker for claim in claims(story)}
    for kept in story.journal:
        if kept.key.partition(":")[0] == step:
            return f"recorded as {kept.key!r} by {workers.get(kept.epoch, 'nobody')}"
    if story.mode == "graph":
        return "kept in LangGraph's checkpoint"
    return "not recorded"
