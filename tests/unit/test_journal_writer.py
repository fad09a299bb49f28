"""The writer thread: one commit for many, leases that are kept, and loss that is told."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from langgraph_durable import journal as journal_module
from langgraph_durable.errors import DurableError, LeaseLost, StepConflict, StoreError
from langgraph_durable.journal import JournalWriter, RunJournal
from langgraph_durable.runs import (
    Lease,
    Question,
    QuestionState,
    Replayed,
    Status,
    Step,
    StepState,
)
from langgraph_durable.store import Ending, Journaled, NewRun, RunStore, Served, Write, open_engine

NOTHING = Journaled((), ())


def step(key: str, value: Any = 1, **more: Any) -> Step:
    return Step(key, "once", fingerprint="f", value=json.dumps(value), **more)


class FakeStore:
    """A store in lists, that can be slow, away or told what it lost."""

    def __init__(self) -> None:
        self.batches: list[list[Write]] = []
        self.ended: list[list[str]] = []
        self.beats: list[list[Lease]] = []
        self.looks: list[list[Lease]] = []
        self.open = threading.Event()
        self.open.set()
        self.beaten = threading.Event()
        self.away = 0
        self.broken: Exception | None = None
        self.unwritable = ""
        self.lost: set[Lease] = set()
        self.status: dict[Lease, Status] = {}

    def keeping_connection(self) -> AbstractContextManager[None]:
        return nullcontext()

    def put_steps(self, writes: Sequence[Write], lease_seconds: float) -> list[Any]:
        self.open.wait(10)
        if self.away:
            self.away -= 1
            raise StoreError("the database is away")
        if self.unwritable in [write.step.key for write in writes]:
            raise ValueError("can't be written")
        self.batches.append(list(writes))
        return [
            LeaseLost(w.lease.run_id, w.lease.epoch) if w.lease in self.lost else None
            for w in writes
        ]

    def finish(self, endings: Sequence[Ending], lease_seconds: float) -> list[bool]:
        self.open.wait(10)
        if self.away:
            self.away -= 1
            raise StoreError("the database is away")
        self.ended.append([ending.output for ending in endings])
        return [ending.lease not in self.lost for ending in endings]

    def statuses(
        self, leases: Collection[Lease], patience_seconds: float
    ) -> Mapping[Lease, Status]:
        self.looks.append(list(leases))
        return self._found(leases)

    def heartbeat(self, leases: Collection[Lease], lease_seconds: float) -> Mapping[Lease, Status]:
        self.beats.append(list(leases))
        if self.away:
            raise StoreError("the database is away")
        if self.broken is not None:
            broken, self.broken = self.broken, None
            raise broken
        return self._found(leases)

    def _found(self, leases: Collection[Lease]) -> Mapping[Lease, Status]:
        self.beaten.set()
        return {
            lease: self.status.get(lease, Status.RUNNING)
            for lease in leases
            if lease not in self.lost
        }


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def start(store: Any) -> Iterator[Callable[..., JournalWriter]]:
    """Start writers; each is stopped at the end."""
    made: list[JournalWriter] = []

    def begin(lease_seconds: float = 60.0) -> JournalWriter:
        writer = JournalWriter(store, lease_seconds)
        made.append(writer)
        writer.start()
        return writer

    yield begin
    store.open.set()
    for writer in made:
        writer.stop()


def lease(name: str = "r1", epoch: int = 1) -> Lease:
    return Lease(name, epoch, "w1")


async def soon(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 10)


async def until(told: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not told():  # noqa: ASYNC110  # what it waits for is another thread's
            await asyncio.sleep(0.005)


@pytest.mark.promise("S-01")
async def test_steps_of_several_runs_that_come_during_a_commit_go_together_in_the_next(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    writer = start()
    runs = [writer.follow(lease(f"r{i}"), NOTHING) for i in range(5)]
    store.open.clear()
    first = asyncio.ensure_future(runs[0].record(step("first")))
    await until(lambda: writer._inbox.empty())  # it is being written
    await asyncio.sleep(0.05)
    rest = [asyncio.ensure_future(run.record(step(k))) for run in runs for k in ("a", "b")]
    await asyncio.sleep(0)
    store.open.set()
    await asyncio.gather(first, *rest)
    assert [len(batch) for batch in store.batches] == [1, 10]
    assert {write.lease.run_id for write in store.batches[1]} == {f"r{i}" for i in range(5)}


@pytest.mark.promise("S-01")
async def test_one_batch_never_names_a_step_twice(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    writer = start()
    run = writer.follow(lease(), NOTHING)
    store.open.clear()
    first = asyncio.ensure_future(run.record(step("first")))
    await until(lambda: writer._inbox.empty())
    await asyncio.sleep(0.05)
    intent = asyncio.ensure_future(run.record(step("a", state=StepState.INTENT)))
    again = asyncio.ensure_future(run.record(step("a", 2)))
    await asyncio.sleep(0)
    store.open.set()
    await asyncio.gather(first, intent, again)
    keys = [[write.step.key for write in batch] for batch in store.batches]
    assert keys == [["first"], ["a"], ["a"]]
    assert run.recorded("a") == again.result()


@pytest.mark.promise("S-02")
async def test_a_journal_answers_from_what_was_loaded_and_goes_on_counting(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    def question(key: str, state: QuestionState) -> Question:
        return Question(key, key, "ask", None, "d", state=state)

    asked = [question("yes", QuestionState.DECIDED), question("late", QuestionState.EXPIRED)]
    asked.append(question("open", QuestionState.OPEN))
    run = start().follow(lease(epoch=4), Journaled([step("old", seq=7)], asked))
    assert run.recorded("old") == step("old", seq=7)
    assert run.recorded("new") is None
    assert run.answer("yes", "d") is asked[0]
    assert run.answer("late", "d") is asked[1]
    assert run.answer("yes", "another payload") is None
    assert run.answer("open", "d") is None
    assert not run.progressed
    new = await run.record(step("new"))
    assert (new.seq, new.epoch, run.recorded("new")) == (8, 4, new)
    assert run.progressed
    assert [s.key for s in run.steps()] == ["old", "new"]


@pytest.mark.promise("S-11")
async def test_an_intent_or_a_failed_try_is_no_progress(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    run = start().follow(lease(), NOTHING)
    await run.record(step("a", state=StepState.INTENT))
    await run.record(step("a", state=StepState.FAILED))
    assert not run.progressed


@pytest.mark.promise("S-06")
def test_heartbeats_come_every_third_of_the_lease(store: Any):
    assert JournalWriter(store, 60.0)._beat.every == 20.0


@pytest.mark.promise("S-06")
@pytest.mark.promise("S-14")
async def test_a_blocked_event_loop_does_not_lose_the_lease(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    run = start(lease_seconds=0.06).follow(lease(), NOTHING)
    assert store.beaten.wait(10)  # waits here, in the loop, on purpose
    store.beaten.clear()
    assert store.beaten.wait(10)
    assert not run.lost.done()


@pytest.mark.promise("S-06")
async def test_a_lease_that_a_heartbeat_finds_lost_is_told_at_once(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    writer = start(lease_seconds=0.06)
    mine, other = writer.follow(lease("r1"), NOTHING), writer.follow(lease("r2"), NOTHING)
    store.lost.add(mine.lease)
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(asyncio.shield(mine.lost), 10)
    assert not other.lost.done()


@pytest.mark.promise("H-11")
async def test_a_heartbeat_brings_the_news_of_a_cancel(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    run = start(lease_seconds=0.06).follow(lease(), NOTHING)
    store.status[run.lease] = Status.CANCELLING
    await asyncio.wait_for(run.cancelling, 10)
    assert not run.lost.done()


@pytest.mark.promise("H-11")
async def test_a_ring_brings_the_look_at_the_leases_forward(
    store: FakeStore, start: Callable[..., JournalWriter], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal_module, "LOOK_SECONDS", 0.01)
    writer = start(lease_seconds=600)
    run = writer.follow(lease(), NOTHING)
    store.status[run.lease] = Status.CANCELLING
    writer.ring()
    await asyncio.wait_for(run.cancelling, 10)
    assert store.looks == [[run.lease]]
    assert not store.beats  # a write would ring others


async def test_rings_do_not_keep_a_lease_from_being_extended(
    store: FakeStore, start: Callable[..., JournalWriter], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal_module, "LOOK_SECONDS", 0.001)
    writer = start(lease_seconds=0.3)
    writer.follow(lease(), NOTHING)
    until = time.monotonic() + 10
    while len(store.beats) < 2 and time.monotonic() < until:
        writer.ring()
        await asyncio.sleep(0.005)
    assert len(store.beats) >= 2
    assert store.looks


@pytest.mark.promise("S-05")
async def test_a_write_that_finds_the_lease_lost_tells_its_future_and_the_run(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    run = start().follow(lease(), NOTHING)
    store.lost.add(run.lease)
    with pytest.raises(LeaseLost):
        await run.record(step("a"))
    assert isinstance(run.lost.exception(), LeaseLost)
    assert run.recorded("a") is None


@pytest.mark.promise("H-09")
async def test_a_run_that_this_worker_took_over_from_itself_is_lost_to_its_first_pass(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    writer = start()
    old = writer.follow(lease(epoch=1), NOTHING)
    new = writer.follow(lease(epoch=2), NOTHING)
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(asyncio.shield(old.lost), 10)
    assert not new.lost.done()


@pytest.mark.promise("H-09")
async def test_the_old_and_the_new_lease_of_one_run_are_told_apart_by_a_heartbeat(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    writer = start(lease_seconds=0.06)
    new = writer.follow(lease(epoch=2), NOTHING)
    old = writer.follow(lease(epoch=1), NOTHING)  # in the other order: nothing told it yet
    store.lost.add(old.lease)
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(asyncio.shield(old.lost), 10)
    assert not new.lost.done()


@pytest.mark.promise("H-15")
async def test_steps_are_written_after_an_outage_that_is_shorter_than_the_lease(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    run = start().follow(lease(), NOTHING)
    store.away = 3
    await asyncio.gather(run.record(step("a")), run.record(step("b")))
    assert sorted(w.step.key for batch in store.batches for w in batch) == ["a", "b"]
    assert not run.lost.done()


@pytest.mark.promise("H-15")
async def test_an_outage_that_outlasts_the_lease_is_a_lost_lease(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    run = start(lease_seconds=0.1).follow(lease(), NOTHING)
    store.away = 1_000_000
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(run.record(step("a")), 10)
    assert isinstance(run.lost.exception(), LeaseLost)


@pytest.mark.promise("H-15")
@pytest.mark.parametrize("error", [StoreError("away"), RuntimeError("a bug, or a driver's own")])
async def test_a_heartbeat_that_fails_in_any_way_is_tried_again(
    store: FakeStore, start: Callable[..., JournalWriter], error: Exception
):
    store.broken = error
    writer = start(lease_seconds=0.3)
    run = writer.follow(lease(), NOTHING)
    await soon(store.beaten)
    await run.record(step("a"))  # the thread lives
    assert len(store.beats) >= 2


@pytest.mark.promise("H-13")
async def test_one_row_that_cannot_be_written_does_not_hinder_the_others(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    writer = start()
    runs = [writer.follow(lease(f"r{i}"), NOTHING) for i in range(3)]
    store.unwritable = "bad"
    store.open.clear()
    first = asyncio.ensure_future(runs[0].record(step("first")))
    await until(lambda: writer._inbox.empty())
    await asyncio.sleep(0.05)
    keys = ["a", "bad", "c"]
    rest = [asyncio.ensure_future(r.record(step(k))) for r, k in zip(runs, keys, strict=True)]
    await asyncio.sleep(0)
    store.open.set()
    told = await asyncio.gather(first, *rest, return_exceptions=True)
    assert [type(one) for one in told] == [Step, Step, DurableError, Step]
    assert "'bad' can't be recorded: can't be written" in str(told[2])
    assert not any(run.lost.done() for run in runs)


@pytest.mark.promise("S-13")
async def test_stopping_writes_what_is_queued(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    writer = start()
    run = writer.follow(lease(), NOTHING)
    store.open.clear()
    waiting = [asyncio.ensure_future(run.record(step(f"k{i}"))) for i in range(1200)]
    await asyncio.sleep(0)
    stopping = asyncio.create_task(asyncio.to_thread(writer.stop))
    await asyncio.sleep(0.02)
    store.open.set()
    await stopping
    await asyncio.gather(*waiting)
    assert sum(len(batch) for batch in store.batches) == 1200
    assert not writer.is_alive()


@pytest.mark.promise("S-13")
async def test_what_comes_after_the_stop_or_finds_no_database_is_refused_not_left_waiting(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    writer = start()
    run = writer.follow(lease(), NOTHING)
    store.open.clear()
    store.away = 1_000_000
    waiting = asyncio.ensure_future(run.record(step("a")))
    await until(lambda: writer._inbox.empty())
    stopping = asyncio.create_task(asyncio.to_thread(writer.stop))
    await asyncio.sleep(0.02)
    store.open.set()
    await stopping
    for late in (waiting, run.record(step("b"))):
        with pytest.raises(StoreError, match="the worker has stopped"):
            await asyncio.wait_for(late, 10)
    assert not run.lost.done()


@pytest.mark.promise("S-62")
async def test_a_run_past_its_deadline_is_kept_no_longer_and_told_when_its_lease_is_over(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    writer = start(lease_seconds=0.2)
    hung = writer.follow(lease("r1"), NOTHING, limit_seconds=0.0)
    healthy = writer.follow(lease("r2"), NOTHING, limit_seconds=600)
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(asyncio.shield(hung.lost), 10)
    assert all(hung.lease not in beat for beat in store.beats)
    assert not healthy.lost.done()


@pytest.mark.promise("S-13")
async def test_a_run_that_is_not_followed_any_more_is_not_kept(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    writer = start(lease_seconds=0.06)
    run = writer.follow(lease(), NOTHING)
    await soon(store.beaten)
    writer.unfollow(run.lease)
    count = len(store.beats)
    await until(lambda: len(store.beats) > count + 1)
    assert store.beats[-1] == []


async def test_a_loop_that_has_ended_does_not_stop_the_thread(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    writer = start()

    async def leave() -> None:
        gone = writer.follow(lease("gone"), NOTHING)
        store.open.clear()
        asyncio.ensure_future(gone.record(step("a")))  # noqa: RUF006  # left behind on purpose
        await asyncio.sleep(0)

    await asyncio.to_thread(lambda: asyncio.run(leave()))
    store.open.set()
    run = writer.follow(lease(), NOTHING)
    await asyncio.wait_for(run.record(step("b")), 10)


# --- with a real database --------------------------------------------------------------


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[tuple[RunStore, JournalWriter]]:
    store = RunStore(open_engine(f"sqlite:///{tmp_path / 'journal.db'}"))
    await asyncio.to_thread(store.upgrade)
    writer = JournalWriter(store, 60.0)
    writer.start()
    yield store, writer
    await asyncio.to_thread(writer.stop)
    store.engine.dispose()


def claimed(store: RunStore, writer: JournalWriter, name: str) -> RunJournal:
    store.create(NewRun(name, "t", "a", "1", "steps", "{}", name))
    claim = store.claim("w1", 60, Served([("a", "1")]))
    assert claim is not None
    return writer.follow(claim.lease, store.load(claim.lease))


@pytest.mark.promise("S-01")
async def test_what_was_awaited_is_in_the_database(real: tuple[RunStore, JournalWriter]):
    store, writer = real
    runs = [claimed(store, writer, f"r{i}") for i in range(4)]
    steps = await asyncio.gather(*(r.record(step(f"k{i}", i)) for r in runs for i in range(25)))
    for run in runs:
        kept = store.list_steps(run.lease.run_id)
        assert [s.key for s in kept] == [f"k{i}" for i in range(25)]
        assert [s.seq for s in kept] == list(range(1, 26))
    assert len(steps) == 100


@pytest.mark.promise("S-07")
async def test_a_conflict_gives_the_run_up(real: tuple[RunStore, JournalWriter]):
    store, writer = real
    run = claimed(store, writer, "r1")
    await run.record(step("a", "first"))
    with pytest.raises(StepConflict):
        await run.record(step("a", "second"))
    assert isinstance(run.lost.exception(), StepConflict)
    assert run.recorded("a") is not None
    assert run.recorded("a").value == '"first"'  # type: ignore[union-attr]


@pytest.mark.promise("H-13")
async def test_a_row_of_a_type_that_no_database_takes_is_refused_alone(
    real: tuple[RunStore, JournalWriter],
):
    store, writer = real
    one, two = claimed(store, writer, "r1"), claimed(store, writer, "r2")
    odd = step("odd", seconds=object())
    told = await asyncio.gather(
        one.record(odd), two.record(step("a")), one.record(step("b")), return_exceptions=True
    )
    assert [type(answer) for answer in told] == [DurableError, Step, Step]
    assert not one.lost.done()


@pytest.mark.promise("S-11")
async def test_ends_of_several_runs_that_come_during_a_commit_go_together_in_the_next(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    writer = start()
    runs = [writer.follow(lease(name), NOTHING) for name in ("r1", "r2", "r3")]
    store.lost.add(runs[2].lease)
    store.open.clear()
    first = asyncio.ensure_future(runs[0].record(step("a")))
    await asyncio.sleep(0)
    ends = [asyncio.ensure_future(run.finish(run.lease.run_id, Replayed())) for run in runs]
    await asyncio.sleep(0)
    store.open.set()
    await first
    assert await asyncio.gather(*ends) == [True, True, False]
    assert store.ended == [["r1", "r2", "r3"]]


async def test_ends_that_the_database_does_not_take_are_left_to_be_settled_one_by_one(
    store: FakeStore, start: Callable[..., JournalWriter]
):
    run = start().follow(lease(), NOTHING)
    store.away = 1
    assert await run.finish("1", Replayed()) is False


async def test_an_end_that_comes_after_the_stop_is_left_to_be_settled_by_itself(
    start: Callable[..., JournalWriter],
):
    writer = start()
    run = writer.follow(lease(), NOTHING)
    await asyncio.to_thread(writer.stop)
    assert await run.finish("1", Replayed()) is False
