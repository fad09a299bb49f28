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
from typing import Any

from langgraph_durable.errors import DurableError
from langgraph_durable.runs import Step
from langgraph_durable.testing.fakes import FakeClock, SeededChance
from langgraph_durable.testing.passes import Aftermath, Player, Stage
from langgraph_durable.testing.points import Life, Point, Trace
from langgraph_durable.testing.scenes import SceneFactory, named

TRACE = "trace.jsonl"
ERROR = "error.txt"
LIFE_SECONDS = 120


Bear = Callable[["Birth"], int]


@dataclass(frozen=True, slots=True)
class Birth:
    """What a life is told when it begins."""

    scene: SceneFactory | str
    input: Any
    folder: Path
    number: int
    fault: Point | None
    now: datetime

    def stage(self) -> Stage:
        """Return where the run is lived."""
        make = named(self.scene) if isinstance(self.scene, str) else self.scene
        return Stage(make, self.input, self.folder, self.folder, FakeClock(self.now))


def play_processes(
    scene: SceneFactory | str, bear: Bear, stage: Stage, plan: Sequence[Point] = ()
) -> Aftermath:
    """Live a run in processes, each of which is killed at a planned point.

    Raises:
        DurableError: a life ended otherwise than it was to.
    """
    stage.set_up()
    kept: list[Mapping[str, Step]] = []
    unreached: tuple[Point, ...] = ()
    for number, fault in enumerate([*plan, None]):
        birth = Birth(scene, stage.input, stage.folder, number, fault, _now(stage))
        if _lived(birth, bear) == 0:
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


def _lived(birth: Birth, bear: Bear) -> int:
    """Let a process live; returns 0 or -SIGKILL."""
    code = bear(birth)
    if code not in (0, -signal.SIGKILL):
        error = birth.folder / ERROR
        said = error.read_text() if error.exists() else f"exit code {code}"
        raise DurableError(f"life {birth.number} ended by itself:\n{said}")
    return code


@contextmanager
def nursery() -> Iterator[Bear]:
    """Start a process that others are forked from: it has no threads, and this one may."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_bear_all, args=(theirs,), name="nursery")
    process.start()
    theirs.close()

    def bear(birth: Birth) -> int:
        ours.send(birth)
        code: int = ours.recv()
        return code

    try:
        yield bear
    finally:
        ours.close()
        process.join()
        process.close()


def _bear_all(births: Connection[int, Birth]) -> None:
    while True:
        try:
            birth = births.recv()
        except EOFError:
            return
        pid = os.fork()
        if pid == 0:
            signal.alarm(LIFE_SECONDS)  # a life that hangs ends by SIGALRM
            try:
                _live(birth)
            finally:
                os._exit(1)
        births.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _live(birth: Birth) -> None:
    """Live, in the new process, until the end of the run or the planned point."""
    stage = birth.stage()
    trace = Trace(birth.folder / TRACE)
    life = Life(trace, birth.fault, _die, now=lambda: stage.clock.now().isoformat())
    try:
        # other lives made other ids
        player = stage.open(life, SeededChance(birth.number))
        player.live()
        player.close()
        os._exit(0)
    except BaseException:
        (birth.folder / ERROR).write_text(traceback.format_exc())
        raise


def _die(_life: Life) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # the signal is on its way
