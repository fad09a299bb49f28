"""The same runs with real processes, each ended by SIGKILL.

A fork server imports the code once, and each life is a fork of it: a process of its own in
milliseconds. What a life saw is in a file, because only a file outlives it. POSIX only.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
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
LIFE_SECONDS = 120.0


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


def play_processes(scene: SceneFactory | str, stage: Stage, plan: Sequence[Point]) -> Aftermath:
    """Live a run in processes, each of which is killed at a planned point.

    Raises:
        DurableError: a life ended otherwise than it was to.
    """
    stage.set_up()
    kept: list[Mapping[str, Step]] = []
    unreached: tuple[Point, ...] = ()
    for number, fault in enumerate([*plan, None]):
        birth = Birth(scene, stage.input, stage.folder, number, fault, _now(stage))
        if _lived(birth) == 0:
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


def _lived(birth: Birth) -> int:
    """Let a process live; returns 0 or -SIGKILL."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_live, args=(birth,), name=f"life {birth.number}")
    process.start()
    process.join(LIFE_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        raise DurableError(f"{process.name} did not end in {LIFE_SECONDS:g} s")
    code = process.exitcode or 0
    process.close()
    if code not in (0, -signal.SIGKILL):
        error = birth.folder / ERROR
        said = error.read_text() if error.exists() else f"exit code {code}"
        raise DurableError(f"a life ended by itself:\n{said}")
    return code


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
    except BaseException:
        (birth.folder / ERROR).write_text(traceback.format_exc())
        raise


def _die(_life: Life) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # the signal is on its way
