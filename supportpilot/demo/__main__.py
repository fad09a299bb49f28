"""python -m supportpilot.demo [--db sqlite|postgres]: the kill experiment in both modes."""

from __future__ import annotations

import signal
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from supportpilot.demo import redone, timeline
from supportpilot.demo.databases import MakeDatabase, databases
from supportpilot.demo.figures import Figures, measure
from supportpilot.demo.processes import DemoFailed
from supportpilot.demo.story import AGENTS, Mode, Story, with_kills, without_kills

WIDTH = 150


class Kind(StrEnum):
    """Where the runs are kept."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


def main(
    db: Annotated[Kind, typer.Option(help="The database of the runtime.")] = Kind.SQLITE,
    folder: Annotated[Path | None, typer.Option(help="Keep files and logs here.")] = None,
) -> None:
    """Kill three workers of one ticket in each mode, and show that nothing is done twice.

    The last two lines are one JSON object for each mode; the exit code is 1 when a figure
    in them is not as promised, and 2 when the experiment could not be carried out.
    """
    # so that no process of the demo outlives it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))
    with tempfile.TemporaryDirectory(prefix="langgraph-durable-demo-") as temporary:
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        try:
            with databases(db, place) as make_database:
                found = [_experiment(mode, make_database, place) for mode in AGENTS]
        except DemoFailed as failure:
            print(f"The experiment stopped: {failure}", file=sys.stderr)
            raise typer.Exit(2) from failure
    wrong = [sentence for figures in found for sentence in figures.wrong()]
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    sys.stderr.flush()
    for figures in found:
        print(figures.line(), flush=True)
    if wrong:
        raise typer.Exit(1)


def _experiment(mode: Mode, make_database: MakeDatabase, place: Path) -> Figures:
    control = without_kills(mode, make_database(f"{mode}_control"), place / f"{mode}_control")
    killed = with_kills(mode, make_database(f"{mode}_killed"), place / f"{mode}_killed")
    _show(killed)
    return measure(killed, control)


def _show(story: Story) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    timeline.show(story, console)
    redone.show(story, console)
    output = story.run.output
    if isinstance(output, dict):
        console.print(f"reply: {output.get('reply')}\n", markup=False)


if __name__ == "__main__":
    typer.run(main)
