"""Many runs' checkpoints in one message: each is written under its own lease, or not at all."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from desk import Desk, step
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import _ainternal
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import AsyncClientCursor, OperationalError
from psycopg.errors import (
    DataError,
    DivisionByZero,
    ProgramLimitExceeded,
    SyntaxError,
    UniqueViolation,
)
from psycopg_pool import PoolClosed, PoolTimeout

from langgraph_durable.checkpoint import FencedSaver, Savers
from langgraph_durable.checkpoint import group as grouping
from langgraph_durable.checkpoint.group import MAX_LENGTH, MAX_WRITES, GroupWriter, Write
from langgraph_durable.checkpoint.postgres import PostgresSavers, _through_outage
from langgraph_durable.errors import LeaseLost
from langgraph_durable.runs import Lease
from langgraph_durable.store import schema
from langgraph_durable.store.steps import Write as StepWrite

KEEP = "INSERT INTO kept (run_id, note) VALUES (%s, %s)"


@pytest.fixture
def here(postgres_with_schema: str) -> Iterator[Desk]:
    """A store on PostgreSQL, and a table beside it."""
    desk = Desk(postgres_with_schema, None)
    desk.wipe()
    with desk.engine.begin() as tx:
        tx.exec_driver_sql("DROP TABLE IF EXISTS kept")
        tx.exec_driver_sql("CREATE TABLE kept (run_id text, note text, UNIQUE (run_id, note))")
    yield desk
    desk.engine.dispose()


@pytest.fixture
async def savers(here: Desk) -> AsyncIterator[PostgresSavers]:
    savers = Savers.for_url(here.url)
    assert isinstance(savers, PostgresSavers)
    await savers.open()
    with here.engine.begin() as tx:
        tx.exec_driver_sql("TRUNCATE checkpoints, checkpoint_blobs, checkpoint_writes")
    yield savers
    await savers.aclose()


@pytest.fixture
def writer(savers: PostgresSavers) -> GroupWriter:
    return savers._writer


class Wire:
    """What goes to the server; a test may hold it up."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.states: list[str | None] = []  # the errors that came back
        self.gate = asyncio.Event()
        self.gate.set()


@pytest.fixture
def wire(savers: PostgresSavers, monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire()
    plain = AsyncClientCursor.execute

    async def execute(self: Any, message: bytes, *args: Any) -> Any:
        wire.sent.append(message)
        await wire.gate.wait()
        try:
            return await plain(self, message, *args)
        except OperationalError as error:
            wire.states.append(error.sqlstate)
            raise

    monkeypatch.setattr(AsyncClientCursor, "execute", execute)
    return wire


def leases(desk: Desk, count: int) -> list[Lease]:
    return [desk.started(id=f"r{n}", mode="graph").lease for n in range(count)]


def steal(desk: Desk, lease: Lease) -> Lease:
    with desk.engine.begin() as tx:
        take = sa.update(schema.runs).where(schema.runs.c.id == lease.run_id)
        tx.execute(take.values(epoch=lease.epoch + 1))
    return Lease(lease.run_id, lease.epoch + 1, "w2")


@contextmanager
def locked(desk: Desk, *held: Lease) -> Iterator[None]:
    """Lock the rows of runs until the block is left."""
    with desk.engine.begin() as tx:
        ids = [lease.run_id for lease in held]
        tx.execute(sa.select(schema.runs.c.id).where(schema.runs.c.id.in_(ids)).with_for_update())
        yield


def note(lease: Lease, text: str = "x") -> Write:
    return Write(lease, [(KEEP, (lease.run_id, text))])


def kept(desk: Desk) -> list[tuple[str, str]]:
    with desk.engine.connect() as tx:
        rows = tx.exec_driver_sql("SELECT run_id, note FROM kept").all()
    return sorted((row.run_id, row.note) for row in rows)


async def together(writer: GroupWriter, *writes: Write) -> list[BaseException | None]:
    """Write all at one instant; return what came of each."""
    async with asyncio.timeout(30):
        return await asyncio.gather(*map(writer.with_others, writes), return_exceptions=True)


async def ticks(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- leases --------------------------------------------------------------------------------


async def test_a_lost_lease_in_a_message_costs_its_own_write_only(
    here: Desk, writer: GroupWriter, wire: Wire
) -> None:
    lost, held = leases(here, 2)
    steal(here, lost)
    refused, written = await together(writer, note(lost), note(held))
    assert isinstance(refused, DivisionByZero)
    assert written is None
    assert kept(here) == [("r1", "x")]
    assert wire.sent[0].count(b"INSERT") == 2  # they were in one message


async def test_the_old_epoch_of_a_run_is_refused_beside_the_new(
    here: Desk, writer: GroupWriter, wire: Wire
) -> None:
    (old,) = leases(here, 1)
    new = steal(here, old)
    refused, written, again = await together(
        writer, note(old, "old"), note(new, "new"), note(new, "more")
    )
    assert isinstance(refused, DivisionByZero)
    assert (written, again) == (None, None)
    assert kept(here) == [("r0", "more"), ("r0", "new")]
    assert wire.sent[0].count(b"INSERT") == 3


async def test_a_run_that_ended_or_is_unknown_is_refused(here: Desk, writer: GroupWriter) -> None:
    ended, held = leases(here, 2)
    with here.engine.begin() as tx:
        end = sa.update(schema.runs).where(schema.runs.c.id == ended.run_id)
        tx.execute(end.values(status="completed"))
    results = await together(writer, note(ended), note(Lease("nobody", 1, "w")), note(held))
    assert [type(result) for result in results] == [DivisionByZero, DivisionByZero, type(None)]
    assert kept(here) == [("r1", "x")]


async def test_no_name_of_a_run_passes_for_another(
    here: Desk, writer: GroupWriter, wire: Wire
) -> None:
    plain = here.started(id="a", mode="graph").lease
    slashed = here.started(id="a/1", mode="graph").lease
    odd = here.started(id="{\"a\\',NULL}/1", mode="graph").lease
    assert await together(writer, note(plain), note(slashed), note(odd)) == [None] * 3
    assert len(wire.sent) == 1
    for late in (Lease("a", 11, "w"), Lease("a/1", 2, "w"), Lease("a/1/1", 1, "w")):
        refused, written = await together(writer, note(late, "late"), note(odd, str(late)))
        assert isinstance(refused, DivisionByZero)
        assert written is None
    assert not [text for _, text in kept(here) if text == "late"]


async def test_a_saver_says_that_its_lease_is_lost(here: Desk, savers: PostgresSavers) -> None:
    lost, held = leases(here, 2)
    async with savers.fenced(lost) as late, savers.fenced(held) as fine:
        late._pass.progressed = fine._pass.progressed = True
        steal(here, lost)
        refused, written = await asyncio.gather(
            put(late, "t1", "a", 1), put(fine, "t2", "a", 1), return_exceptions=True
        )
        assert isinstance(refused, LeaseLost)
        assert written is None
        late._pass.lost = False  # or the end of the pass would say it again
    assert (written_by(here, "t1"), written_by(here, "t2")) == (0, 1)


async def test_nothing_is_written_behind_a_claim(here: Desk, writer: GroupWriter) -> None:
    """Runs are stolen while they write: what a thief saw is all that the loser wrote."""
    held = leases(here, 12)
    acknowledged: list[tuple[str, str]] = []
    seen: dict[str, int] = {}

    async def writes(lease: Lease) -> None:
        for n in range(10_000):
            try:
                await writer.with_others(note(lease, str(n)))
            except DivisionByZero:
                return
            acknowledged.append((lease.run_id, str(n)))
        pytest.fail("nobody stole it")

    def thief() -> None:
        for lease in random.Random(7).sample(held, len(held)):
            time.sleep(0.02)
            with here.engine.begin() as tx:
                take = sa.update(schema.runs).where(schema.runs.c.id == lease.run_id)
                tx.execute(take.values(epoch=lease.epoch + 1))
                count = sa.text("SELECT count(*) FROM kept WHERE run_id = :run")
                seen[lease.run_id] = tx.execute(count, {"run": lease.run_id}).scalar_one()

    async with asyncio.timeout(60):
        await asyncio.gather(asyncio.to_thread(thief), *map(writes, held))
    rows = kept(here)
    assert sorted(acknowledged) == rows
    assert {run: sum(row[0] == run for row in rows) for run in seen} == seen


# --- locks ---------------------------------------------------------------------------------


async def test_a_locked_run_keeps_no_other_from_being_written(
    here: Desk, writer: GroupWriter, wire: Wire
) -> None:
    *stuck, free, later = leases(here, 5)
    with locked(here, *stuck):
        waiting = [asyncio.create_task(writer.with_others(note(lease))) for lease in stuck]
        # in one message with them, and in the next ones
        assert await together(writer, note(free)) == [None]
        assert await together(writer, note(later), note(free, "y")) == [None, None]
        assert kept(here) == [("r3", "x"), ("r3", "y"), ("r4", "x")]
        assert not any(task.done() for task in waiting)
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)
    assert len(kept(here)) == 6
    assert wire.sent[0].count(b"INSERT") == 4


async def test_a_locked_run_alone_in_its_message_keeps_no_other_either(
    here: Desk, writer: GroupWriter
) -> None:
    *stuck, free = leases(here, 4)
    waiting = []
    with locked(here, *stuck):
        for lease in stuck:
            waiting.append(asyncio.create_task(writer.with_others(note(lease))))
            await asyncio.sleep(0.02)
        assert await together(writer, note(free)) == [None]
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)
    assert len(kept(here)) == 4


async def test_a_write_that_waits_for_a_lock_can_be_cancelled(
    here: Desk, savers: PostgresSavers, writer: GroupWriter
) -> None:
    stuck, free = leases(here, 2)
    with locked(here, stuck):
        waiting = asyncio.create_task(writer.with_others(note(stuck)))
        assert await together(writer, note(free)) == [None]
        await asyncio.sleep(0.05)
        waiting.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await waiting
    assert kept(here) == [("r1", "x")]
    await savers._pool.check()
    assert await together(writer, note(stuck)) == [None]


@pytest.mark.parametrize("first", [True, False])
async def test_a_lock_that_the_database_lets_nobody_wait_for_is_tried_again(
    here: Desk, savers: PostgresSavers, first: bool
) -> None:
    (lease,) = leases(here, 1)
    url = sa.make_url(here.url).update_query_dict({"options": "-c lock_timeout=50"})
    impatient = Savers.for_url(url.render_as_string(hide_password=False))
    await impatient.open()
    try:
        async with impatient.fenced(lease) as saver:
            saver._pass.progressed = not first
            with locked(here, lease):
                writing = asyncio.create_task(put(saver, "t1", "a", 1))
                await asyncio.sleep(0.3)
                assert not writing.done()
            async with asyncio.timeout(10):
                await writing
    finally:
        await impatient.aclose()
    assert written_by(here, "t1") == 1


async def test_the_journal_and_the_messages_dont_deadlock(
    here: Desk, savers: PostgresSavers, wire: Wire
) -> None:
    """Both lock rows of many runs, each in an order of its own."""
    held = leases(here, 20)
    states: list[str | None] = []
    stop = threading.Event()
    recorded = 0

    @sa.event.listens_for(here.engine, "handle_error")
    def note_error(context: Any) -> None:
        states.append(getattr(context.original_exception, "sqlstate", None))

    def journal() -> None:
        nonlocal recorded
        shuffled, order = list(held), random.Random(3)
        with here.store.keeping_connection():
            while not stop.is_set():
                order.shuffle(shuffled)
                writes = [StepWrite(lease, step(f"s{recorded}")) for lease in shuffled]
                assert here.store.put_steps(writes, 60) == [None] * len(held)
                recorded += 1

    thread = asyncio.create_task(asyncio.to_thread(journal))
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(writes_of(savers, lease, 25) for lease in held))
    finally:
        stop.set()
        await thread
    assert "40P01" not in states + wire.states
    assert [written_by(here, lease.run_id) for lease in held] == [25] * len(held)
    with here.engine.connect() as tx:
        counted = tx.execute(sa.select(sa.func.count()).select_from(schema.steps)).scalar_one()
    assert counted == recorded * len(held) > 0


# --- messages --------------------------------------------------------------------------------


async def test_many_writes_take_few_messages(here: Desk, writer: GroupWriter, wire: Wire) -> None:
    held = leases(here, 50)
    assert await together(writer, *map(note, held)) == [None] * 50
    assert len(wire.sent) == 2
    assert kept(here) == sorted((lease.run_id, "x") for lease in held)


async def test_while_messages_are_under_way_the_next_writes_gather(
    here: Desk, writer: GroupWriter, wire: Wire
) -> None:
    held = leases(here, 3)
    wire.gate.clear()
    tasks = []
    for n in range(10):
        for lease in held:
            tasks.append(asyncio.create_task(writer.with_others(note(lease, str(n)))))
        await asyncio.sleep(0.01)
    wire.gate.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert len(wire.sent) == 3
    assert len(kept(here)) == 30


async def test_a_write_that_comes_as_both_messages_end_is_not_left_behind(
    here: Desk, writer: GroupWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "MAX_WRITES", 1)
    one, two, three = leases(here, 3)
    end = asyncio.Event()

    async def execute(_: Any) -> None:
        await end.wait()

    async def comes() -> None:
        await end.wait()
        await writer.with_others(note(three))

    monkeypatch.setattr(writer, "_execute", execute)
    under_way = [asyncio.create_task(writer.with_others(note(lease))) for lease in (one, two)]
    await ticks()
    under_way.append(asyncio.create_task(comes()))
    await ticks()
    end.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*under_way)


async def test_a_large_write_goes_by_itself(here: Desk, writer: GroupWriter, wire: Wire) -> None:
    one, two = leases(here, 2)
    with here.engine.begin() as tx:
        tx.exec_driver_sql("ALTER TABLE kept DROP CONSTRAINT kept_run_id_note_key")
    large = note(one, "x" * MAX_LENGTH)
    assert large.length > MAX_LENGTH > note(one).length
    assert await together(writer, large, note(one), note(two)) == [None] * 3
    assert sorted(message.count(b"INSERT") for message in wire.sent) == [1, 2]
    assert len(kept(here)) == 3


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (("INSERT INTO kept VALUES (", ()), SyntaxError),
        ((KEEP, ("r1", "there")), UniqueViolation),
        # an OperationalError, though nothing is wrong with the server
        ((KEEP, ("r1", random.Random(1).randbytes(9_000).hex())), ProgramLimitExceeded),
        ((KEEP, ("r1", "a\x00b")), DataError),
        ((KEEP, ("r1", object())), Exception),
    ],
)
async def test_what_the_database_refuses_is_the_error_of_its_own_write(
    here: Desk, writer: GroupWriter, said: Any, error: type[Exception]
) -> None:
    before, bad, behind = leases(here, 3)
    await writer.with_others(note(bad, "there"))
    written, refused, also = await together(writer, note(before), Write(bad, [said]), note(behind))
    assert (written, also) == (None, None)
    assert isinstance(refused, error)
    assert kept(here) == [("r0", "x"), ("r1", "there"), ("r2", "x")]


async def test_a_message_that_takes_too_long_is_given_up(
    here: Desk, writer: GroupWriter, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "MESSAGE_SECONDS", 0.1)
    held = leases(here, 3)
    with here.engine.begin() as tx:  # as a server would be that was cut off
        tx.exec_driver_sql("LOCK TABLE kept")
        tasks = [asyncio.create_task(writer.with_others(note(lease))) for lease in held]
        await asyncio.sleep(0.5)
        assert len(wire.sent) == 1 + len(held)
        assert not writer._sending
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert len(kept(here)) == 3


# --- who waits may go away -----------------------------------------------------------------


async def test_a_cancelled_write_that_still_waits_isnt_sent(
    here: Desk, writer: GroupWriter, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "MAX_WRITES", 2)
    held = leases(here, 4)
    wire.gate.clear()
    tasks = [
        asyncio.create_task(writer.with_others(note(lease, n))) for lease in held for n in "ab"
    ]
    await asyncio.sleep(0.05)
    assert len(wire.sent) == 2  # with two writes each; four wait
    tasks[0].cancel()  # under way
    tasks[4].cancel()
    tasks[6].cancel()
    tasks[7].cancel()
    await ticks()
    wire.gate.set()
    async with asyncio.timeout(10):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    gone = [n for n, result in enumerate(results) if result is not None]
    assert gone == [0, 4, 6, 7]
    assert kept(here) == [("r0", "a"), ("r0", "b"), ("r1", "a"), ("r1", "b"), ("r2", "b")]


@pytest.mark.parametrize("moment", [*range(12), 0.001, 0.002, 0.004])
async def test_a_write_cancelled_at_any_moment_harms_no_other(
    here: Desk, savers: PostgresSavers, writer: GroupWriter, moment: float
) -> None:
    lost, gone, held = leases(here, 3)
    steal(here, lost)  # so that they go together at first, and then by themselves
    tasks = [asyncio.create_task(writer.with_others(note(lease))) for lease in (lost, gone, held)]
    await (ticks(moment) if isinstance(moment, int) else asyncio.sleep(moment))
    tasks[1].cancel()
    async with asyncio.timeout(10):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], DivisionByZero)
    assert results[1] is None or isinstance(results[1], asyncio.CancelledError)
    assert results[2] is None
    written = [run for run, _ in kept(here)]
    assert written == ["r1", "r2"] if results[1] is None else written in (["r2"], ["r1", "r2"])
    await asyncio.sleep(0)
    assert (writer._waiting, writer._sending) == ([], set())
    assert savers._pool.get_stats().get("requests_waiting", 0) == 0


async def test_a_sender_that_is_cancelled_leaves_nobody_waiting(
    here: Desk, writer: GroupWriter, wire: Wire
) -> None:
    one, two = leases(here, 2)
    wire.gate.clear()
    tasks = [asyncio.create_task(writer.with_others(note(lease))) for lease in (one, two)]
    await asyncio.sleep(0.05)
    for sending in writer._sending:
        sending.cancel()
    await ticks()
    wire.gate.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert len(kept(here)) == 2


async def test_closing_leaves_nobody_waiting(
    here: Desk, savers: PostgresSavers, writer: GroupWriter, wire: Wire
) -> None:
    held = leases(here, 3 * MAX_WRITES)
    wire.gate.clear()
    tasks = [asyncio.create_task(writer.with_others(note(lease))) for lease in held]
    await asyncio.sleep(0.05)
    assert len(wire.sent) == 2
    async with asyncio.timeout(10):
        await savers.aclose()
        wire.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[: 2 * MAX_WRITES] == [None] * 2 * MAX_WRITES
    assert {type(result) for result in results[2 * MAX_WRITES :]} == {PoolClosed}
    assert len(kept(here)) == 2 * MAX_WRITES


def test_a_loop_that_ends_takes_what_waits_with_it(here: Desk) -> None:
    held = leases(here, 3)

    async def main() -> None:
        savers = Savers.for_url(here.url)
        assert isinstance(savers, PostgresSavers)
        await savers.open()
        with locked(here, *held):
            for lease in held:
                tasks.append(asyncio.create_task(savers._writer.with_others(note(lease))))
            await asyncio.sleep(0.05)
            await savers.aclose()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.wait(tasks, timeout=10)

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(main())
    assert all(task.cancelled() for task in tasks)
    assert kept(here) == []


# --- a server that is away -------------------------------------------------------------------


async def test_a_pool_without_a_free_connection_is_an_outage(
    here: Desk, savers: PostgresSavers, writer: GroupWriter
) -> None:
    pool = savers._pool
    pool.timeout = 0.2
    one, two = leases(here, 2)
    taken = [await pool.getconn(timeout=5) for _ in range(pool.max_size)]
    results = await together(writer, note(one), note(two))
    assert [type(result) for result in results] == [PoolTimeout] * 2
    async with savers.fenced(one) as saver:  # which tries again
        saver._pass.progressed = True
        writing = asyncio.create_task(put(saver, "t1", "a", 1))
        await asyncio.sleep(0.3)
        for connection in taken:
            await pool.putconn(connection)
        async with asyncio.timeout(10):
            await writing
    assert written_by(here, "t1") == 1


async def test_nothing_is_lost_or_written_twice_as_the_server_goes_and_comes(
    here: Desk, savers: PostgresSavers, wire: Wire
) -> None:
    held = leases(here, 15)
    stop = threading.Event()
    killed = 0

    def kills() -> None:
        nonlocal killed
        admin = sa.create_engine(here.url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            while not stop.wait(0.05) and killed < 60:
                killed += connection.exec_driver_sql(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid() "
                    "AND backend_type = 'client backend'"
                ).scalar_one()

    killing = asyncio.create_task(asyncio.to_thread(kills))
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(writes_of(savers, lease, 20) for lease in held))
    finally:
        stop.set()
        await killing
    assert killed
    here.engine.dispose()  # its connections were dropped too
    assert [written_by(here, lease.run_id) for lease in held] == [20] * len(held)


async def test_a_storm_of_all_this_loses_nothing_that_was_acknowledged(
    here: Desk, savers: PostgresSavers, writer: GroupWriter
) -> None:
    """Connections drop, leases are stolen and writes are cancelled, in any order."""
    held = leases(here, 12)
    chance, stop = random.Random(11), asyncio.Event()
    acknowledged: set[tuple[str, str]] = set()
    again = KEEP + " ON CONFLICT DO NOTHING"

    async def writes(lease: Lease) -> None:
        n = 0
        while not stop.is_set():
            n += 1
            name = (lease.run_id, f"{lease.epoch}.{n}")
            write = Write(lease, [(again, name)])
            task = asyncio.create_task(_through_outage(lambda w=write: writer.with_others(w)))
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() * 0.004)
                task.cancel()
            try:
                async with asyncio.timeout(15):
                    await task
                acknowledged.add(name)
            except DivisionByZero:
                lease = Lease(lease.run_id, lease.epoch + 1, "w2")
            except asyncio.CancelledError:
                assert task.cancelled()

    def storm() -> dict[tuple[str, int], int]:
        admin = sa.create_engine(here.url, poolclass=sa.NullPool)
        seen: dict[tuple[str, int], int] = {}
        until = time.monotonic() + 2
        while time.monotonic() < until:
            lease = chance.choice(held)
            with admin.begin() as tx:
                take = sa.update(schema.runs).where(schema.runs.c.id == lease.run_id)
                raised = take.values(epoch=schema.runs.c.epoch + 1).returning(schema.runs.c.epoch)
                old = tx.execute(raised).scalar_one() - 1
                count = sa.text("SELECT count(*) FROM kept WHERE run_id = :run AND note LIKE :old")
                seen[lease.run_id, old] = tx.execute(
                    count, {"run": lease.run_id, "old": f"{old}.%"}
                ).scalar_one()
            with admin.begin() as tx:
                tx.exec_driver_sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN "
                    "(SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
                    "AND pid <> pg_backend_pid() AND backend_type = 'client backend' LIMIT 2)"
                )
            time.sleep(0.02)
        return seen

    tasks = [asyncio.create_task(writes(lease)) for lease in held]
    seen = await asyncio.to_thread(storm)
    stop.set()
    await asyncio.gather(*tasks)
    here.engine.dispose()  # its connections were dropped too
    rows = kept(here)
    assert acknowledged
    assert acknowledged <= set(rows)
    for (run, epoch), count in seen.items():  # nothing came under an epoch that was over
        assert sum(row[0] == run and row[1].startswith(f"{epoch}.") for row in rows) == count


async def test_a_commit_whose_answer_is_lost_is_written_once(
    here: Desk, savers: PostgresSavers, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = leases(here, 5)
    lost: list[int] = []
    plain = AsyncClientCursor.execute

    async def execute(self: Any, *args: Any) -> Any:
        result = await plain(self, *args)
        if len(lost) < 3:
            lost.append(1)
            await self.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return result

    monkeypatch.setattr(AsyncClientCursor, "execute", execute)

    async def one(lease: Lease) -> None:
        async with savers.fenced(lease) as saver:
            saver._pass.progressed = True
            await put(saver, lease.run_id, "a", 1)

    async with asyncio.timeout(30):
        await asyncio.gather(*map(one, held))
    assert len(lost) == 3
    assert [written_by(here, lease.run_id) for lease in held] == [1] * 5


# --- what is written -------------------------------------------------------------------------


def place(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": "1"}}


async def writes_of(savers: Savers, lease: Lease, times: int) -> None:
    """A pass that writes one checkpoint after another."""
    async with savers.fenced(lease) as saver:
        for n in range(times):
            await put(saver, lease.run_id, str(n), n)


async def put(saver: FencedSaver, thread: str, task: str, value: Any) -> None:
    await saver.aput_writes(place(thread), [("c", value)], task)


def written_by(desk: Desk, thread: str) -> int:
    with desk.engine.connect() as tx:
        count = sa.text("SELECT count(*) FROM checkpoint_writes WHERE thread_id = :thread")
        return int(tx.execute(count, {"thread": thread}).scalar_one())


ODD = [
    "it's \"quoted\" ''twice''",
    "back\\slash \\' \\\\ \\x41 \\n\\",
    "100% %s %(a)s %% %",
    "a; DROP TABLE runs; -- \n/* $1 $$ $a$ */ E'' :x ? {}",
    "\U0001f600 é ß 漢字 \u202e \x7f \r\n\t",
    b"\x00\x01\\'\xff;--%s" + bytes(range(256)),
    b"",
    "",
]


@pytest.mark.parametrize("conforming", ["on", "off"])
async def test_text_and_bytes_come_back_as_they_were(postgres_url: str, conforming: str) -> None:
    desk = Desk(postgres_url, None)
    desk.store.upgrade()
    with desk.engine.begin() as tx:
        name = tx.exec_driver_sql("SELECT current_database()").scalar_one()
        tx.exec_driver_sql(f"ALTER DATABASE {name} SET standard_conforming_strings = {conforming}")
    desk.engine.dispose()
    savers = Savers.for_url(desk.url)
    await savers.open()
    held = leases(desk, len(ODD))

    async def one(lease: Lease, odd: str | bytes) -> None:
        thread = odd if isinstance(odd, str) else lease.run_id
        values = {"plain": odd, "in": [odd, {"k": odd}]}
        at: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        async with savers.fenced(lease) as saver:
            saver._pass.progressed = True
            checkpoint = empty_checkpoint() | {
                "channel_values": values,
                "channel_versions": {"plain": "1", "in": "1"},
            }
            behind = await saver.aput(
                at,
                checkpoint,  # type: ignore[arg-type]
                {"source": "input", "of": thread},  # type: ignore[typeddict-unknown-key]
                {"plain": "1", "in": "1"},
            )
            await saver.aput_writes(behind, [("c", odd), ("d", [odd])], lease.run_id)
            found = await saver.aget_tuple(at)
        assert found is not None
        assert found.checkpoint["channel_values"] == values
        assert found.metadata["of"] == thread  # type: ignore[typeddict-item]
        assert found.pending_writes == [
            (lease.run_id, "c", odd),
            (lease.run_id, "d", [odd]),
        ]

    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*map(one, held, ODD))
        huge = ("\U0001f600'\\%" * 2_000_000)[:8_000_000]
        await one(held[0], huge[:1] * 3)
        async with savers.fenced(held[0]) as saver:
            await put(saver, "huge", "a", huge)
            await put(saver, "huge", "b", huge.encode())
            read = await saver.aget_tuple(
                await saver.aput(
                    {"configurable": {"thread_id": "huge", "checkpoint_ns": ""}},
                    empty_checkpoint()
                    | {"channel_values": {"t": huge}, "channel_versions": {"t": "1"}},  # type: ignore[arg-type]
                    {},
                    {"t": "1"},
                )
            )
        assert read is not None
        assert read.checkpoint["channel_values"]["t"] == huge
        with desk.engine.connect() as tx:
            lengths = "SELECT length(blob) FROM checkpoint_writes WHERE thread_id = 'huge'"
            assert all(n > 8_000_000 for (n,) in tx.exec_driver_sql(lengths))
    finally:
        await savers.aclose()
        desk.engine.dispose()


async def test_a_client_encoding_of_its_own_is_kept_to(here: Desk, savers: PostgresSavers) -> None:
    (lease,) = leases(here, 1)
    url = sa.make_url(here.url).update_query_dict({"client_encoding": "latin1"})
    other = Savers.for_url(url.render_as_string(hide_password=False))
    await other.open()
    try:
        async with other.fenced(lease) as saver:
            await put(saver, "café", "a", "é")
            await put(saver, "café", "b", "é")
    finally:
        await other.aclose()
    assert written_by(here, "café") == 2


@pytest.mark.parametrize("way", ["its connection", "LangGraph's helper"])
async def test_a_saver_that_writes_in_another_way_writes_nothing(
    here: Desk, savers: PostgresSavers, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async def aput_writes(self: Any, *_: Any) -> None:
        if way == "its connection":
            async with self.conn.connection() as connection:
                await connection.execute("INSERT INTO kept VALUES ('r0', 'x')")
        async with _ainternal.get_connection(self.conn) as connection:
            await connection.execute("INSERT INTO kept VALUES ('r0', 'x')")

    (lease,) = leases(here, 1)
    monkeypatch.setattr(AsyncPostgresSaver, "aput_writes", aput_writes)
    async with savers.fenced(lease) as saver:
        with pytest.raises((AttributeError, TypeError)):
            await put(saver, "t1", "a", 1)
    assert kept(here) == []
