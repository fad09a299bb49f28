"""The same runs with real processes, each ended by SIGKILL.

A nursery, which is a process, imports the code once; each life is a fork of it, there in
milliseconds. What a life saw is in a file, because only a file outlives it. POSIX only.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from langgraph_durable.errors import DurableError
from langgraph_durable.runs import Step
from langgraph_durable.testing.fakes import FakeClock, SeededChance
from langgraph_durable.testing.passes import Aftermath, Player, Stage, play
from langgraph_durable.testing.points import Life, Point, Trace
from langgraph_durable.testing.scenes import SceneFactory, named

TRACE = "trace.jsonl"
ERROR = "error.txt"
LIFE_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Birth:
    """What a life is told when it begins."""

    number: int
    fault: Point | None
    now: datetime


Bear = Callable[[Birth], int]


def play_processes(bear: Bear, stage: Stage, plan: Sequence[Point] = ()) -> Aftermath:
    """Live a run in processes, each of which is killed at a planned point.

    Raises:
        DurableError: a life ended otherwise than it was to.
    """
    stage.set_up()
    kept: list[Mapping[str, Step]] = []
    unreached: tuple[Point, ...] = ()
    for number, fault in enumerate([*plan, None]):
        if _lived(stage, Birth(number, fault, _now(stage)), bear) == 0:
            unreached = tuple(plan[number:])
            break
        player = _reader(stage)
        kept.append(player.recorded())
        player.close()
    player = _reader(stage)
    try:
        run_id = player.find()
        if run_id is None:
            raise DurableError("the run was lost: nobody finds it")
        return replace(player.aftermath(run_id), kept=kept, unreached=unreached)
    finally:
        player.close()


def _now(stage: Stage) -> datetime:
    at = Trace(stage.folder / TRACE).at
    return datetime.fromisoformat(at) if at else stage.clock.now()


def _reader(stage: Stage) -> Player:
    return stage.open(Life(Trace(stage.folder / TRACE)), SeededChance())


def _lived(stage: Stage, birth: Birth, bear: Bear) -> int:
    """Let a process live; returns 0 or -SIGKILL."""
    code = bear(birth)
    if code not in (0, -signal.SIGKILL):
        error = stage.folder / ERROR
        said = error.read_text() if error.exists() else f"exit code {code}"
        raise DurableError(f"life {birth.number} ended by itself:\n{said}")
    return code


# --- the nursery -------------------------------------------------------------------------


@contextmanager
def nursery(scene: SceneFactory | str, stage: Stage) -> Iterator[Bear]:
    """Start a process that the others are forked from: this one has threads."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    where = (stage.folder, stage.template, stage.clock.now())
    process = context.Process(
        target=_bear_all, args=(theirs, scene, stage.input, *where), name="nursery"
    )
    process.start()
    theirs.close()

    def bear(birth: Birth) -> int:
        ours.send(birth)
        code: int = ours.recv()
        return code

    try:
        if ours.poll(LIFE_SECONDS):
            ours.recv()  # it is ready
        yield bear
    finally:
        ours.close()
        process.join()
        process.close()


def _bear_all(
    births: Connection[int, Birth],
    scene: SceneFactory | str,
    input: Any,
    folder: Path,
    template: Path,
    began: datetime,
) -> None:
    make = named(scene) if isinstance(scene, str) else scene
    stage = Stage(make, input, folder, template, FakeClock(began))
    play(stage)  # what is imported and compiled on the way, every life inherits
    stage.engine.dispose()
    births.send(0)
    while True:
        try:
            birth = births.recv()
        except EOFError:
            return
        pid = os.fork()
        if pid == 0:
            _live(stage, birth)
        births.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _live(stage: Stage, birth: Birth) -> NoReturn:
    """Live, in the new process, until the end of the run or the planned point."""
    signal.alarm(LIFE_SECONDS)  # a life that hangs ends by SIGALRM
    stage.clock.turn_to(birth.now)
    trace = Trace(stage.folder / TRACE)
    life = Life(trace, birth.fault, _die, now=lambda: stage.clock.now().isoformat())
    try:
        # other lives made other ids
        stage.open(life, SeededChance(birth.number)).live()
        os._exit(0)
    except BaseException:
        (stage.folder / ERROR).write_text(traceback.format_exc())
    finally:
        os._exit(1)


def _die(_life: Life) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # the signal is on its way
