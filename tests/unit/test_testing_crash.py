"""crash_everywhere itself: a crash that never happened fails, and so does a broken runtime."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from langgraph_durable import RunContext
from langgraph_durable.errors import BadInput, Conflict
from langgraph_durable.runs import StepState
from langgraph_durable.store import RunStore
from langgraph_durable.testing import FakeClock, Point, RecordingTools, Scene, crash_everywhere
from langgraph_durable.testing.crash import CrashReport, Rehearsal, staged
from langgraph_durable.testing.mortal import MortalDurable
from langgraph_durable.testing.passes import Stage, play
from langgraph_durable.testing.points import Died, Life, Trace, acting, living
from langgraph_durable.testing.scenes import named


def tools() -> RecordingTools:
    hub = RecordingTools()

    @hub.tool(effect="idempotent")
    def pay(amount: int, idempotency_key: str) -> int:
        return amount

    @hub.tool(effect="once")
    def mail(to: str) -> str:
        return to

    return hub


async def agent(ctx: RunContext, inp: Any) -> Any:
    """Pay, ask, mail."""
    await ctx.tool("pay", "pay", {"amount": 42})
    await ctx.ask("sure", "sure?")
    return await ctx.tool("mail", "mail", {"to": "li"})


def rehearse(
    store: type[RunStore], scene: Scene | None = None, *, stops: bool = False
) -> CrashReport:
    """Crash everywhere with a store that isn't ours."""

    class Broken(MortalDurable):
        def _open(self, url: str, clock: Any, create: bool) -> RunStore:
            return store(self._engine, clock, self.types)

    class BrokenStage(Stage):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.durable = Broken

    scene = scene or Scene(agent, tools=tools())
    assert isinstance(scene.tools, RecordingTools)
    with staged(lambda _: scene, None, FakeClock(), BrokenStage) as stage:
        rehearsal = Rehearsal(stage, scene.tools.ledger.clear)
        return rehearsal.report(play, pairs=False, stops=stops)


def problems(report: CrashReport) -> str:
    return "\n".join(problem for crash in report.failed for problem in crash.problems)


# --- a crash must have happened --------------------------------------------------------------


def test_a_crash_that_never_happened_fails() -> None:
    with staged(lambda _: Scene(agent, tools=tools()), None, FakeClock()) as stage:
        rehearsal = Rehearsal(stage, lambda: None)
        calm = rehearsal._play(play, ())
        crash = rehearsal._crash(calm, play, (Point("before", "a call that is never made"),))
    assert crash.problems == ("the planned crash before a call that is never made never happened",)
    with pytest.raises(AssertionError, match="killed before a call that is never made"):
        CrashReport(calm, (crash,)).assert_ok()


def test_the_points_are_those_of_design() -> None:
    report = crash_everywhere(agent, tools=tools())
    report.assert_ok()
    shown = {str(point) for point in report.points}
    for moment in (
        "submit", "claim", "record of step 'pay' as intent",
        "call of tool 'local.pay' for step 'pay'", "record of step 'pay' as recorded",
        "settlement as asked", "decision on 'sure'", "claim (time 2)", "settlement as done",
    ):  # fmt: skip
        assert {f"before {moment}", f"after {moment}"} <= shown
    assert all(crash.after.kept for crash in report.crashes)  # each crash has landed
    assert len(report.crashes) == len(report.points)


def test_nothing_is_left_behind() -> None:
    before = set(threading.enumerate())
    crash_everywhere(agent, tools=tools()).assert_ok()
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
    assert set(threading.enumerate()) <= before


# --- broken runtimes ---------------------------------------------------------------------------


def test_a_sound_store_passes() -> None:
    assert problems(rehearse(RunStore)) == ""


def test_a_store_that_reports_what_it_did_not_write_is_caught() -> None:
    class Deaf(RunStore):
        def put_steps(self, writes: Sequence[Any], lease_seconds: float) -> list[Any]:
            heard = [w for w in writes if w.step.key != "pay" or w.step.state != "recorded"]
            if heard:
                super().put_steps(heard, lease_seconds)
            return [None] * len(writes)

    assert "record of step 'pay' was reported as committed, and is not there" in problems(
        rehearse(Deaf)
    )


def test_a_store_without_intents_is_caught() -> None:
    """Then a call that can't be repeated is repeated blindly."""

    class Intentless(RunStore):
        def put_steps(self, writes: Sequence[Any], lease_seconds: float) -> list[Any]:
            kept = [w for w in writes if w.step.state is not StepState.INTENT]
            if kept:
                super().put_steps(kept, lease_seconds)
            return [None] * len(writes)

    said = problems(rehearse(Intentless))
    assert "step 'mail': 'local.mail' can't be repeated, and was called 2 times" in said


def test_a_store_that_forgets_a_recorded_step_is_caught() -> None:
    class Forgetful(RunStore):
        def finish(self, endings: Any, lease_seconds: float) -> list[bool]:
            with self.engine.begin() as tx:
                tx.execute(sa.text("DELETE FROM steps WHERE key = 'pay'"))
            return super().finish(endings, lease_seconds)

    assert "'pay'" in problems(rehearse(Forgetful))


def test_a_claim_that_keeps_the_epoch_is_caught() -> None:
    class Ageless(RunStore):
        def claim_some(self, *args: Any) -> Any:
            found = super().claim_some(*args)
            if not found or found[0].lease.epoch == 1:
                return found
            with self.engine.begin() as tx:
                tx.execute(sa.text("UPDATE runs SET epoch = 1"))
                tx.execute(sa.text("UPDATE events SET data = replace(data, '2', '1')"))
            return [replace(found[0], lease=replace(found[0].lease, epoch=1))]

    assert "epochs do not grow by one with each claim" in problems(rehearse(Ageless))


def test_a_store_that_lets_a_late_worker_settle_is_caught() -> None:
    class Unfenced(RunStore):
        def finish(self, endings: Any, lease_seconds: float) -> list[bool]:
            return [False] * len(endings)

        def settle(self, lease: Any, outcome: Any, *args: Any) -> Any:
            run = self.get(lease.run_id)
            if run.epoch != lease.epoch:  # as if there were no fence
                with self.engine.begin() as tx:
                    tx.execute(sa.text("UPDATE runs SET status = 'queued', output = NULL"))
                return run.status
            return super().settle(lease, outcome, *args)

    assert "the worker that woke up" in problems(rehearse(Unfenced, stops=True))


def test_a_key_that_differs_from_try_to_try_is_caught() -> None:
    class Forgetting(RecordingTools):
        async def call(self, name: str, arguments: Any, info: Any) -> Any:
            key = f"{info.run_id}:{info.key}:{info.fencing_token}"
            return await super().call(name, arguments, replace(info, idempotency_key=key))

    hub = Forgetting()

    @hub.tool(effect="idempotent")
    def pay(amount: int, idempotency_key: str) -> int:
        return amount

    async def pays(ctx: RunContext, inp: Any) -> Any:
        return await ctx.tool("pay", "pay", {"amount": 42})

    said = problems(rehearse(RunStore, Scene(pays, tools=hub)))
    assert "'local.pay' {'amount': 42} from step 'pay' took effect 2 times (calm: 1)" in said


def test_a_second_click_that_is_refused_is_caught() -> None:
    class Strict(RunStore):
        def decide(self, question_id: str, *args: Any, **options: Any) -> Any:
            if self.question(question_id).decision is not None:
                raise Conflict("decided already")
            return super().decide(question_id, *args, **options)

    with pytest.raises(Conflict) as caught:
        rehearse(Strict)
    assert "killed after decision on 'sure'" in caught.value.__notes__


# --- lives -----------------------------------------------------------------------------------


def _dying(life: Life) -> Callable[[], None]:
    def once() -> None:
        with living(life), acting("effect"):
            pass

    return once


def test_nothing_happens_after_death() -> None:
    trace = Trace()
    life = Life(trace, Point("before", "effect"), Life.crash)
    once = _dying(life)
    with pytest.raises(Died):
        once()
    with pytest.raises(Died):
        once()
    assert [str(point) for point in trace.points] == ["before effect"]


def test_a_fake_adds_no_points_inside_of_a_call_that_has_them() -> None:
    trace = Trace()
    with living(Life(trace)), acting("outer"), acting("inner"):
        pass
    assert [str(point) for point in trace.points] == ["before outer", "after outer"]


def test_acting_does_nothing_outside_of_a_rehearsal() -> None:
    with acting("effect"):
        pass


def test_a_trace_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    for _ in range(2):
        trace = Trace(path)
        trace.reach("before", "claim", by_worker=True, at="2026-01-01T00:00:00+00:00")
    assert [str(p) for p in Trace(path).points] == ["before claim", "before claim (time 2)"]
    assert Trace(path).at == "2026-01-01T00:00:00+00:00"


def test_a_scene_is_found_by_name() -> None:
    assert callable(named("langgraph_durable.testing.scenes:agree"))
    with pytest.raises(BadInput, match=r"package\.module:name"):
        named("langgraph_durable.testing.scenes")


async def test_it_is_not_called_in_a_loop() -> None:
    async def small(ctx: RunContext, inp: Any) -> Any:
        return str(await ctx.uuid("id"))

    with pytest.raises(Exception, match="event loop"):
        crash_everywhere(small)
    (await asyncio.to_thread(crash_everywhere, small)).assert_ok()
