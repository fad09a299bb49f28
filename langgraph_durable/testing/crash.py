"""crash_everywhere: kill an agent at every point of a run, and show that nothing is lost."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from langgraph_durable.app import Durable
from langgraph_durable.errors import BadInput
from langgraph_durable.policy import Rule
from langgraph_durable.runs import Effect, Mode
from langgraph_durable.testing.compare import differences, faults
from langgraph_durable.testing.fakes import FakeClock
from langgraph_durable.testing.ledger import Ledger, RecordingTools
from langgraph_durable.testing.passes import Aftermath, Stage, play, play_stopped
from langgraph_durable.testing.points import Point
from langgraph_durable.testing.scenes import Decide, Scene, SceneFactory, agree, is_factory, named
from langgraph_durable.testing.tables import side_by_side
from langgraph_durable.tools import ToolHub

_MEMORY = Path("/dev/shm")  # noqa: S108  # a fresh folder of our own is made in it
Play = Callable[[Stage, Sequence[Point]], Aftermath]


@dataclass(frozen=True, slots=True)
class Crashed:
    """What came of a run that crashed at one point, or at two in turn."""

    plan: tuple[Point, ...]
    problems: tuple[str, ...]
    after: Aftermath
    how: str = "killed"

    @property
    def is_ok(self) -> bool:
        """Whether the crash did no harm."""
        return not self.problems

    def __str__(self) -> str:
        """Name it in a line."""
        return f"{self.moment}: {'; '.join(self.problems) or 'ok'}"

    @property
    def moment(self) -> str:
        """When it crashed, in words."""
        return f"{self.how} {', then '.join(map(str, self.plan))}".rstrip()


@dataclass(frozen=True, slots=True)
class CrashReport:
    """A calm run, and one for each crash."""

    calm: Aftermath
    crashes: tuple[Crashed, ...]

    @property
    def points(self) -> Sequence[Point]:
        """Where the calm run can crash."""
        return self.calm.reached

    @property
    def failed(self) -> list[Crashed]:
        """The crashes that did harm, or never happened."""
        return [crash for crash in self.crashes if not crash.is_ok]

    @property
    def is_ok(self) -> bool:
        """Whether no crash did harm."""
        return not self.failed

    @property
    def repeated(self) -> Mapping[str, int]:
        """How many calls were made again after a crash, by effect: their keys absorbed them."""
        counts: Counter[str] = Counter()
        for crash in self.crashes:
            calls = Counter((call.key, call.effect) for call in crash.after.calls)
            for (_, effect), count in calls.items():
                counts[effect] += count - 1
        return {effect.value: counts[effect.value] for effect in Effect}

    def assert_ok(self) -> None:
        """Raise an AssertionError that names the points and shows the journals side by side.

        Raises:
            AssertionError: a crash did harm, or never happened.
        """
        if self.is_ok:
            return
        first = self.failed[0]
        lines = [
            f"{len(self.failed)} of {len(self.crashes)} crashes did harm:",
            *(f"  - {crash}" for crash in self.failed[:20]),
            *(["  - …"] if len(self.failed) > 20 else []),
            "",
            f"{first.moment}:",
            side_by_side(self.calm, first.after),
        ]
        raise AssertionError("\n".join(lines))

    def __str__(self) -> str:
        """Say how many points there are of each kind, and what came of them."""
        kinds = Counter(f"{point.when} {_kind(point.label)}" for point in self.points)
        again = ", ".join(f"{count} {effect}" for effect, count in self.repeated.items())
        return "\n".join(
            [
                f"{len(self.points)} crash points, {len(self.crashes)} crashes, "
                f"{len(self.failed)} did harm; calls repeated: {again}",
                *(f"  {count:>3}  {kind}" for kind, count in sorted(kinds.items())),
            ]
        )


def _kind(label: str) -> str:
    """Return a label without names: "record of step 'a' as intent" is "record of step as intent"."""
    parts = label.split("'")
    return " ".join("".join(parts[::2]).split()) if len(parts) > 1 else label


def crash_everywhere(
    agent: Any,
    input: Any = None,
    *,
    mode: Mode = "steps",
    decisions: Decide = agree,
    signals: Mapping[str, Sequence[Any]] | None = None,
    tools: ToolHub | None = None,
    models: Mapping[str, Any] | None = None,
    rules: Iterable[Rule] = (),
    types: Iterable[type] = (),
    ledger: Ledger | None = None,
    effects: Callable[[], Any] | None = None,
    fresh: Callable[[], Any] | None = None,
    tenant: str = "default",
    context: Any = None,
    clock: FakeClock | None = None,
    pairs: bool | int = False,
    stops: bool = False,
    processes: bool = False,
) -> CrashReport:
    """Run an agent once, then once for each point with a crash there and a new worker after.

    The points: before and after each transaction of worker and client (submit, claim, each
    step's intent, record and failure, each settlement, each decision), each checkpoint of
    graph mode, each call of a tool, a model or a fake that says so by `acting`. After each
    crash the runs are compared: same end and output, no effect twice, no question twice, no
    recorded step lost or changed, only allowed moves. A crash that never happened is a
    failure.

    Args:
        agent: a graph, an async function `(ctx, input)`, what `durable.graph` returned, or
            a scene factory `(folder) -> Scene`, called in each life; by name as
            "package.module:name".
        decisions: what people answer; None says nobody does. By default all is approved, and
            what can't be is answered with True. "Did this call happen?" is answered truly.
        signals: by event, the payloads that are signalled in turn, each when the run waits for
            it. When none is left nobody signals: the time of the wait goes by.
        ledger: what a graph's own calls are written to (`Ledger.act`); that of
            `RecordingTools` is found by itself and emptied before each run.
        effects: returns a list of what the outside world shows, when that isn't a ledger.
        fresh: called before each run, to reset fakes of your own.
        clock: the clock that everything goes by, for agents that read it themselves.
        pairs: also each pair of a crash and another one in the recovery (many runs); a
            number takes so many of them, spread evenly.
        stops: also let the worker stand still at each point until another one has ended
            the run, and then go on (SIGSTOP, SIGCONT).
        processes: each life is a real process, ended by SIGKILL; needs a scene factory that
            can be imported.

    Raises:
        BadInput: `processes` was asked for an agent that no other process can build.
    """
    given = {
        "mode": mode, "tools": tools, "models": models or {}, "rules": tuple(rules),
        "types": tuple(types), "decisions": decisions, "signals": signals or {},
        "ledger": ledger, "effects": effects, "tenant": tenant, "context": context,
    }  # fmt: skip
    make = _factory(agent, given)
    if processes and not is_factory(agent) and not isinstance(agent, str):
        raise BadInput("processes=True needs a scene factory (folder) -> Scene, or its name")
    clock = clock or FakeClock()
    with staged(make, input, clock) as stage:
        rehearsal = Rehearsal(stage, _refresh(tools, ledger, fresh))
        if processes:
            from langgraph_durable.testing.processes import nursery, play_processes

            with nursery(agent, stage) as bear:
                return rehearsal.report(partial(play_processes, bear), pairs=pairs, stops=False)
        return rehearsal.report(play, pairs=pairs, stops=stops)


def _factory(agent: Any, given: dict[str, Any]) -> SceneFactory:
    if isinstance(agent, str):
        return named(agent)
    if is_factory(agent):
        factory: SceneFactory = agent
        return factory
    scene = Scene(agent, **given)
    return lambda _folder: scene


def _refresh(
    tools: ToolHub | None, ledger: Ledger | None, fresh: Callable[[], Any] | None
) -> Callable[[], None]:
    def refresh() -> None:
        if isinstance(tools, RecordingTools):
            tools.ledger.clear()
        if ledger is not None:
            ledger.clear()
        if fresh is not None:
            fresh()

    return refresh


@dataclass
class Rehearsal:
    """Runs of one agent, one after the other."""

    stage: Stage
    refresh: Callable[[], None]

    def __post_init__(self) -> None:
        """Note when every run begins."""
        self._began = self.stage.clock.now()

    def report(self, how: Play, *, pairs: bool | int, stops: bool) -> CrashReport:
        """Crash everywhere."""
        calm = self._play(how, ())
        wrong = tuple(faults(calm))
        if wrong:  # nothing can be told by comparing with it
            return CrashReport(calm, (Crashed((), wrong, calm, "without any crash"),))
        crashes = [self._crash(calm, how, (point,)) for point in calm.reached]
        if pairs:
            plans = list(_pairs(crashes))
            if pairs is not True:
                plans = plans[:: max(1, len(plans) // pairs)][:pairs]
            crashes += [self._crash(calm, how, plan) for plan in plans]
        if stops:
            by_worker = [point for point in calm.reached if point.by_worker]
            crashes += [self._crash(calm, _stopped, (p,), "stopped") for p in by_worker]
        return CrashReport(calm, tuple(crashes))

    def _crash(
        self, calm: Aftermath, how: Play, plan: tuple[Point, ...], named: str = "killed"
    ) -> Crashed:
        try:
            after = self._play(how, plan)
        except Exception as error:
            error.add_note(f"{named} {', then '.join(map(str, plan))}")
            raise
        return Crashed(plan, tuple(differences(calm, after)), after, named)

    def _play(self, how: Play, plan: Sequence[Point]) -> Aftermath:
        self.refresh()
        self.stage.clock.turn_to(self._began)
        return how(self.stage, plan)


def _stopped(stage: Stage, plan: Sequence[Point]) -> Aftermath:
    return play_stopped(stage, plan[0])


def _pairs(crashes: Sequence[Crashed]) -> Iterator[tuple[Point, ...]]:
    """Each crash, and then each point that its recovery came to."""
    for crash in crashes:
        reached = list(crash.after.reached)
        if crash.plan[0] in reached:
            later = reached[reached.index(crash.plan[0]) + 1 :]
            yield from ((crash.plan[0], point) for point in later)


@contextmanager
def staged(
    make: SceneFactory, input: Any, clock: FakeClock, kind: type[Stage] = Stage
) -> Iterator[Stage]:
    """Give a stage in a folder of its own, in memory where there is one."""
    base = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="crash-everywhere-", dir=base) as name:
        template = Path(name) / "template.db"
        Durable(f"sqlite:///{template}").close()
        stage = kind(make, input, Path(name) / "run", template, clock)
        try:
            yield stage
        finally:
            stage.engine.dispose()
