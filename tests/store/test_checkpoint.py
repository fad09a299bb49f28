"""The fenced savers: what a worker without its lease can't do, and what state survives."""

from __future__ import annotations

import asyncio
import math
import operator
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Annotated, Any, NotRequired, TypedDict

import aiosqlite
import pytest
import sqlalchemy as sa
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Interrupt, Send, interrupt
from psycopg import AsyncClientCursor
from pydantic import BaseModel

from langgraph_durable.checkpoint import Savers
from langgraph_durable.errors import LeaseLost, StoreError
from langgraph_durable.runs import Lease
from langgraph_durable.store import fence, schema
from langgraph_durable.values import Types

RUN = "r1"


class Colour(Enum):
    RED = "red"


class Mood(StrEnum):
    GLAD = "glad"


class Order(BaseModel):
    id: str
    lines: list[str] = []


@dataclass(frozen=True, slots=True)
class Money:
    cents: int
    note: str = ""


class Stranger(BaseModel):
    id: str


CLASSES = [Colour, Mood, Order, Money]


class Runs:
    """The runs table, as far as a fence sees it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)
        schema.metadata.create_all(self.engine)

    def add(self, run_id: str = RUN, epoch: int = 1) -> Lease:
        now = datetime.now(UTC)
        row = {"id": run_id, "tenant": "t", "agent": "a", "version": "1", "mode": "graph"}
        row |= {"thread": run_id, "status": "running", "input": "{}", "epoch": epoch}
        with self.engine.begin() as tx:
            tx.execute(sa.insert(schema.runs).values(**row, run_after=now, created_at=now))
        return Lease(run_id, epoch, "w1")

    def steal(self, run_id: str = RUN) -> None:
        self.change(run_id, epoch=schema.runs.c.epoch + 1)

    def change(self, run_id: str = RUN, **values: Any) -> None:
        with self.engine.begin() as tx:
            tx.execute(sa.update(schema.runs).where(schema.runs.c.id == run_id).values(**values))

    def progress(self, run_id: str = RUN) -> int:
        with self.engine.connect() as tx:
            query = sa.select(schema.runs.c.progress_epoch).where(schema.runs.c.id == run_id)
            return int(tx.execute(query).scalar_one())

    def checkpoint_rows(self) -> dict[str, int]:
        tables = ["checkpoints", "writes" if "sqlite" in self.url else "checkpoint_writes"]
        with self.engine.connect() as tx:
            return {t: tx.exec_driver_sql(f"SELECT count(*) FROM {t}").scalar_one() for t in tables}


@pytest.fixture
def runs(database_url: str) -> Iterator[Runs]:
    runs = Runs(database_url)
    yield runs
    runs.engine.dispose()


@pytest.fixture
async def savers(runs: Runs) -> AsyncIterator[Savers]:
    savers = Savers.for_url(runs.url, types=Types(CLASSES))
    await savers.open()
    yield savers
    await savers.aclose()


@asynccontextmanager
async def unfenced(url: str) -> AsyncIterator[BaseCheckpointSaver[str]]:
    """LangGraph's own saver on the same database."""
    backend, target = fence.target(url)
    if backend == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(target) as saver:
            yield saver
    else:
        async with AsyncPostgresSaver.from_conn_string(target) as saver:
            yield saver


def on_thread(thread: str = "t1") -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


class State(TypedDict):
    log: Annotated[list[str], operator.add]


Node = Callable[[State], Any]


def graph_of(**nodes: Node) -> Any:
    builder = StateGraph(State)
    names = list(nodes)
    for name, node in nodes.items():
        builder.add_node(name, node)
    for before, after in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(before, after)
    return builder.compile()


def says(word: str) -> Node:
    async def node(_: State) -> State:
        return {"log": [word]}

    return node


async def run_graph(graph: Any, saver: Any, given: Any, thread: str = "t1") -> Any:
    graph = graph.copy(update={"checkpointer": saver})
    return await graph.ainvoke(given, on_thread(thread), durability="sync")


async def state_of(graph: Any, saver: Any, thread: str = "t1") -> Any:
    return await graph.copy(update={"checkpointer": saver}).aget_state(on_thread(thread))


# --- the fence ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_worker_that_lost_its_run_writes_nothing_more(
    runs: Runs, savers: Savers, kind: str
) -> None:
    ran: list[str] = []

    def taken_over(_: State) -> State:
        runs.steal()
        ran.append("b")
        return {"log": ["b"]}

    async def taken_over_async(state: State) -> State:
        return await asyncio.to_thread(taken_over, state)

    async def after(_: State) -> State:
        ran.append("c")
        return {"log": ["c"]}

    graph = graph_of(a=says("a"), b=taken_over if kind == "sync" else taken_over_async, c=after)

    lease = runs.add()
    with pytest.raises(LeaseLost) as lost:
        async with savers.fenced(lease) as saver:
            await run_graph(graph, saver, {"log": []})
    assert (lost.value.run_id, lost.value.epoch) == (RUN, 1)
    assert ran == ["b"]
    async with savers.fenced(Lease(RUN, 2, "w2")) as saver:
        state = await state_of(graph, saver)
        assert state.values == {"log": ["a"]}
        assert state.next == ("b",)
        assert not state.tasks[0].result

    ran.clear()  # the control: without the fence the late worker finishes the thread
    async with unfenced(runs.url) as plain:
        assert (await run_graph(graph, plain, {"log": []}, "t2"))["log"] == ["a", "b", "c"]
    assert ran == ["b", "c"]


async def test_lease_lost_comes_out_of_ainvoke_itself(runs: Runs, savers: Savers) -> None:
    def taken_over(_: State) -> State:
        runs.steal()
        return {"log": ["a"]}

    graph = graph_of(a=taken_over, b=says("b"))
    async with savers.fenced(runs.add()) as saver:
        with pytest.raises(LeaseLost):
            await run_graph(graph, saver, {"log": []})
        assert saver.lost
        with pytest.raises(LeaseLost):
            await saver.adelete_thread("t1")
        runs.change(epoch=1)
        saver._pass.lost = False  # or the end of the pass would say it again


@pytest.mark.parametrize("shape", ["node", "subgraph"])
async def test_a_question_of_a_lost_run_is_not_asked(
    runs: Runs, savers: Savers, shape: str
) -> None:
    stolen = threading.Event()

    def asks(_: State) -> State:
        if stolen.is_set():
            runs.steal()
        return {"log": [interrupt("really?")]}

    inner = graph_of(prepare=says("p"), ask=asks)
    graph = graph_of(a=says("a"), sub=asks if shape == "node" else inner, c=says("c"))
    lease = runs.add()

    stolen.set()
    with pytest.raises(LeaseLost):
        async with savers.fenced(lease) as saver:
            # LangGraph swallows a GraphBubbleUp raised by a background write, and returns
            # as if the question had been stored. The end of the pass brings it back.
            await run_graph(graph, saver, {"log": []})
    stolen.clear()

    async with savers.fenced(Lease(RUN, 2, "w2")) as saver:
        state = await state_of(graph, saver)
        assert state.next == ("sub",)
        assert not state.interrupts
        result = await run_graph(graph, saver, None)  # the new owner asks it
        (asked,) = result["__interrupt__"]
        assert (await state_of(graph, saver)).interrupts[0].id == asked.id

    stolen.set()
    with pytest.raises(LeaseLost):
        async with savers.fenced(Lease(RUN, 2, "w2")) as saver:
            await run_graph(graph, saver, Command(resume={asked.id: "yes"}))
    stolen.clear()
    async with savers.fenced(Lease(RUN, 3, "w3")) as saver:
        assert (await state_of(graph, saver)).interrupts[0].id == asked.id  # still unanswered
        result = await run_graph(graph, saver, Command(resume={asked.id: "yes"}))
    assert result["log"][-2:] == ["yes", "c"]


async def test_an_error_of_a_node_does_not_hide_the_lost_lease(runs: Runs, savers: Savers) -> None:
    def breaks(_: State) -> State:
        runs.steal()
        raise ValueError("boom")

    with pytest.raises(LeaseLost) as lost:
        async with savers.fenced(runs.add()) as saver:
            await run_graph(graph_of(a=breaks), saver, {"log": []})
    assert isinstance(lost.value.__cause__, ValueError)


async def test_a_graph_run_by_a_sync_node_is_fenced_too(runs: Runs, savers: Savers) -> None:
    steal = threading.Event()

    def inside(_: State) -> State:
        if steal.is_set():
            runs.steal()
        return {"log": ["in"]}

    inner = graph_of(x=inside, y=lambda _: {"log": [interrupt("ok?")]})

    def outer(state: State, config: RunnableConfig) -> Any:
        return inner.invoke({"log": []}, config)

    graph = graph_of(outer=outer)
    lease = runs.add()
    async with savers.fenced(lease) as saver:
        result = await run_graph(graph, saver, {"log": []})
        (asked,) = result["__interrupt__"]
        result = await run_graph(graph, saver, Command(resume={asked.id: "fine"}))
        assert result["log"] == ["in", "fine"]

    steal.set()
    with pytest.raises(LeaseLost):
        async with savers.fenced(lease) as saver:
            await run_graph(graph, saver, {"log": []}, "t2")


@pytest.mark.parametrize("status", ["queued", "waiting_human", "succeeded"])
async def test_a_run_that_no_worker_owns_takes_no_checkpoint(
    runs: Runs, savers: Savers, status: str
) -> None:
    lease = runs.add()
    runs.change(status=status)
    with pytest.raises(LeaseLost):
        async with savers.fenced(lease) as saver:
            await run_graph(graph_of(a=says("a")), saver, {"log": []})
    assert runs.checkpoint_rows() == dict.fromkeys(runs.checkpoint_rows(), 0)
    runs.change(status="cancelling")
    async with savers.fenced(lease) as saver:
        await run_graph(graph_of(a=says("a")), saver, {"log": []})


async def test_a_lost_run_deletes_no_thread(runs: Runs, savers: Savers) -> None:
    lease = runs.add()
    async with savers.fenced(lease) as saver:
        await run_graph(graph_of(a=says("a")), saver, {"log": []})
    before = runs.checkpoint_rows()
    runs.steal()
    with pytest.raises(LeaseLost):
        async with savers.fenced(lease) as saver:
            await saver.adelete_thread("t1")
    if "postgres" in runs.url:
        with pytest.raises(LeaseLost):
            async with savers.fenced(lease) as saver:
                await saver.aprune(["t1"])
    assert runs.checkpoint_rows() == before
    await savers.delete_thread("t1")  # retention is not fenced
    assert runs.checkpoint_rows() == dict.fromkeys(before, 0)


async def test_runs_side_by_side_have_fences_of_their_own(runs: Runs, savers: Savers) -> None:
    graph = graph_of(a=says("a"), b=says("b"))
    leases = [runs.add(f"r{n}") for n in range(12)]
    runs.steal("r3")

    async def one(lease: Lease) -> Any:
        async with savers.fenced(lease) as saver:
            return await run_graph(graph, saver, {"log": []}, lease.run_id)

    results = await asyncio.gather(*map(one, leases), return_exceptions=True)
    assert isinstance(results.pop(3), LeaseLost)
    assert results == [{"log": ["a", "b"]}] * 11


@pytest.mark.parametrize("claim", ["commits", "fails"])
async def test_a_write_waits_for_a_claim_that_is_under_way(
    runs: Runs, savers: Savers, claim: str
) -> None:
    lease = runs.add()
    with runs.engine.connect() as thief:
        transaction = thief.begin()
        thief.execute(sa.update(schema.runs).values(epoch=2))
        async with savers.fenced(lease) as saver:
            writing = asyncio.ensure_future(run_graph(graph_of(a=says("a")), saver, {"log": []}))
            await asyncio.sleep(0.3)
            assert not writing.done()
            transaction.commit() if claim == "commits" else transaction.rollback()
            if claim == "fails":
                assert await writing == {"log": ["a"]}
            else:
                with pytest.raises(LeaseLost):
                    await writing
                saver._pass.lost = False
    if claim == "commits":
        assert runs.checkpoint_rows() == dict.fromkeys(runs.checkpoint_rows(), 0)


# --- progress ------------------------------------------------------------------------------


async def test_progress_is_what_gets_the_graph_further(runs: Runs, savers: Savers) -> None:
    dies = {"on": True}

    def crashes(_: State) -> State:
        if dies["on"]:
            raise RuntimeError("the worker dies here")
        return {"log": ["b"]}

    inner = graph_of(b=crashes)
    graph = graph_of(a=says("a"), sub=inner)

    async def attempt(epoch: int, given: Any) -> int:
        runs.change(epoch=epoch)
        try:
            async with savers.fenced(Lease(RUN, epoch, "w")) as saver:
                await run_graph(graph, saver, given)
        except RuntimeError:
            pass
        return runs.progress()

    runs.add()
    assert await attempt(1, {"log": []}) == 1  # node a was done
    assert await attempt(2, None) == 1  # the node that kills its worker got nowhere
    assert await attempt(3, None) == 1
    dies["on"] = False
    assert await attempt(4, None) == 4


async def test_an_answer_put_in_again_is_no_progress(runs: Runs, savers: Savers) -> None:
    def asks(_: State) -> State:
        answer = interrupt("really?")
        raise RuntimeError(f"the worker dies on {answer}")

    graph = graph_of(ask=asks)
    lease = runs.add()
    async with savers.fenced(lease) as saver:
        (asked,) = (await run_graph(graph, saver, {"log": []}))["__interrupt__"]
    for epoch in (2, 3):
        runs.change(epoch=epoch)
        with pytest.raises(RuntimeError):
            async with savers.fenced(Lease(RUN, epoch, "w")) as saver:
                await run_graph(graph, saver, Command(resume={asked.id: "yes"}))
        assert runs.progress() == 1


async def test_a_finished_sibling_is_progress(runs: Runs, savers: Savers) -> None:
    builder = StateGraph(State)
    builder.add_node("quick", says("quick"))

    async def hangs(_: State) -> State:
        await asyncio.sleep(0.2)
        raise RuntimeError("the worker dies here")

    builder.add_node("hangs", hangs)
    builder.add_edge(START, "quick")
    builder.add_edge(START, "hangs")
    graph = builder.compile()
    lease = runs.add()
    progress = []
    async with savers.fenced(lease) as saver:
        aput = saver.aput

        async def forget(*args: Any) -> Any:
            result = await aput(*args)
            runs.change(progress_epoch=0)
            saver._pass.progressed = False
            return result

        saver.aput = forget
        with pytest.raises(RuntimeError):
            await run_graph(graph, saver, {"log": []})
        progress.append(runs.progress())
    assert progress == [1]


# --- what state survives ----------------------------------------------------------------

NUL, HALF, WHOLE, ESC = "a\x00b", "a\ud83d", "a\U0001f600?", "\x1b[0m\x1bd83d"
PAIR = "\ud83d\ude00"  # two lone halves beside each other are not the whole


class Wide(TypedDict):
    text: NotRequired[str]
    number: NotRequired[Any]
    nested: NotRequired[Any]
    order: NotRequired[Order]
    money: NotRequired[Money]
    mood: NotRequired[Any]
    messages: NotRequired[Annotated[list[AnyMessage], add_messages]]


async def passed_through(savers: Savers, lease: Lease, values: Any, **config: Any) -> Any:
    """What another worker reads of state that a node wrote and the next node kept."""

    async def keep(_: Wide) -> Any:
        return {}

    async def write(_: Wide) -> Any:
        return values

    builder = StateGraph(Wide)
    builder.add_node("write", write)
    builder.add_node("keep", keep)
    builder.add_node("stop", keep)
    builder.add_edge(START, "write")
    builder.add_edge("write", "keep")
    builder.add_edge("keep", "stop")
    graph = builder.compile(interrupt_before=["stop"])
    async with savers.fenced(lease) as saver:
        g = graph.copy(update={"checkpointer": saver})
        await g.ainvoke({}, {**on_thread(), **config}, durability="sync")
    async with savers.fenced(lease) as saver:
        g = graph.copy(update={"checkpointer": saver})
        history = [state async for state in g.aget_state_history(on_thread())]
        state = await g.aget_state(on_thread())
    assert repr(history[0].values) == repr(state.values)
    return state


@pytest.mark.parametrize("text", [NUL, HALF, WHOLE, ESC, PAIR, HALF + NUL + ESC, ""])
async def test_text_comes_back_as_it_was(runs: Runs, savers: Savers, text: str) -> None:
    values = {
        "text": text,
        "nested": {text + "key": [text, (text,), {text}, deque([text])], "n": None},
        "order": Order(id=text, lines=[text]),
        "money": Money(1, note=text),
        "messages": [
            HumanMessage(text, id="1"),
            AIMessage(text, id="2", additional_kwargs={text: text}),
            ToolMessage(text, id="3", tool_call_id="x", artifact={"a": [text]}),
        ],
    }
    state = await passed_through(savers, runs.add(), values)
    # msgpack has no tuples: LangGraph's rule on both databases
    values["nested"][text + "key"][1] = [text]
    assert state.values == values
    assert type(state.values["order"]) is Order


@pytest.mark.parametrize("text", [NUL, HALF, ESC + HALF])
async def test_questions_answers_and_sends_keep_their_text(
    runs: Runs, savers: Savers, text: str
) -> None:
    def fan_out(_: State) -> list[Send]:
        return [Send("ask", {"log": [text]})]

    def asks(state: State) -> State:
        return {"log": [*state["log"], interrupt({"show": text, text: Order(id=text)})]}

    builder = StateGraph(State)
    builder.add_node("a", says(text))
    builder.add_node("ask", asks)
    builder.add_edge(START, "a")
    builder.add_conditional_edges("a", fan_out, ["ask"])
    graph = builder.compile()
    lease = runs.add()
    async with savers.fenced(lease) as saver:
        await run_graph(graph, saver, {"log": []})
    async with savers.fenced(lease) as saver:
        (asked,) = (await state_of(graph, saver)).interrupts
        assert isinstance(asked, Interrupt)
        assert asked.value == {"show": text, text: Order(id=text)}
    async with savers.fenced(lease) as saver:
        result = await run_graph(graph, saver, Command(resume={asked.id: text}))
    assert result["log"] == [text, text, text]
    async with savers.fenced(lease) as saver:
        assert (await state_of(graph, saver)).values["log"] == [text, text, text]


@pytest.mark.parametrize(
    "number", [1.5, -0.0, 1e22, math.inf, math.nan, 2**60, 2**64, -(2**70), 0, True]
)
async def test_numbers_come_back_as_they_were(runs: Runs, savers: Savers, number: Any) -> None:
    state = await passed_through(savers, runs.add(), {"number": number})
    back = state.values["number"]
    assert type(back) is type(number)
    assert repr(back) == repr(number)


async def test_registered_classes_come_back_as_themselves(runs: Runs, savers: Savers) -> None:
    values = {"mood": Mood.GLAD, "nested": [Colour.RED, Mood.GLAD, Money(5), Order(id="o")]}
    state = await passed_through(savers, runs.add(), values)
    assert state.values == {**values, "messages": []}
    assert type(state.values["mood"]) is Mood
    assert [type(v) for v in state.values["nested"]] == [Colour, Mood, Money, Order]


async def test_an_unregistered_class_comes_back_as_a_dict(runs: Runs, savers: Savers) -> None:
    lease = runs.add()
    state = await passed_through(savers, lease, {"nested": [Stranger(id="1"), Stranger(id=HALF)]})
    assert state.values["nested"] == [{"id": "1"}, {"id": HALF}]
    async with savers.fenced(lease) as saver:  # what `compile` does in LangGraph's strict mode
        wider = saver.with_allowlist([(Stranger.__module__, "Stranger")])
        found = await wider.aget_tuple(on_thread())
        assert found is not None
        assert found.checkpoint["channel_values"]["nested"][1] == Stranger(id=HALF)
        assert saver.with_allowlist([]) is saver


async def test_metadata_follows_one_rule(runs: Runs, savers: Savers) -> None:
    config = {
        "metadata": {"nul": NUL, "half": HALF, "deep": {HALF: [NUL]}, "nan": math.nan},
        "configurable": {"thread_id": "t1", "user": NUL + HALF},
    }
    state = await passed_through(savers, runs.add(), {"text": "x"}, **config)
    kept = {key: state.metadata.get(key) for key in ("nul", "half", "nan", "user")}
    assert kept == {"nul": "a␀b", "half": "a�", "nan": None, "user": "a␀ba�"}


async def test_a_thread_of_langgraphs_own_saver_goes_on(runs: Runs, savers: Savers) -> None:
    """Its floats are in JSON; they must not vanish when the next checkpoint boxes them."""
    builder = StateGraph(Wide)
    builder.add_node("a", lambda _: {"number": 1.5, "text": "x"})
    builder.add_node("b", lambda _: {"text": "y"})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    graph = builder.compile()
    async with unfenced(runs.url) as plain:
        await plain.setup()
        await graph.copy(update={"checkpointer": plain, "interrupt_before_nodes": ["b"]}).ainvoke(
            {}, on_thread(), durability="sync"
        )
    async with savers.fenced(runs.add()) as saver:
        assert await run_graph(graph, saver, None) == {"number": 1.5, "text": "y", "messages": []}
    async with savers.fenced(Lease(RUN, 1, "w")) as saver:
        assert (await state_of(graph, saver)).values == {"number": 1.5, "text": "y", "messages": []}
    async with unfenced(runs.url) as plain:  # and back again
        assert (await state_of(graph, plain)).values == {"number": 1.5, "text": "y", "messages": []}


# --- LangGraph's conformance suite ---------------------------------------------------------


async def test_the_fenced_savers_conform(runs: Runs, savers: Savers) -> None:
    lease = runs.add()

    @checkpointer_test(name="fenced")
    async def fenced() -> AsyncIterator[BaseCheckpointSaver[str]]:
        async with savers.fenced(lease) as saver:
            yield saver

    @checkpointer_test(name="plain")
    async def plain() -> AsyncIterator[BaseCheckpointSaver[str]]:
        async with unfenced(runs.url) as saver:
            yield saver

    ours, theirs = await validate(fenced), await validate(plain)
    assert ours.passed_all_base(), [r.failures for r in ours.results.values()]
    for name, result in ours.results.items():
        control = theirs.results[name]
        assert result.detected == control.detected, name
        assert result.passed == control.passed, (name, result.failures)
        assert result.tests_passed == control.tests_passed, (name, result.failures)


# --- databases that misbehave ------------------------------------------------------------


def postgres_only(runs: Runs) -> None:
    if "sqlite" in runs.url:
        pytest.skip("SQLite has no server")


async def test_a_run_outlives_dropped_connections(runs: Runs, savers: Savers) -> None:
    postgres_only(runs)
    ran: list[str] = []

    async def slow(_: State) -> State:
        ran.append("slow")
        admin = sa.create_engine(runs.url, poolclass=sa.NullPool)
        with admin.connect() as connection:
            killed = connection.exec_driver_sql(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).scalar_one()
        assert killed >= 1
        return {"log": ["slow"]}

    graph = graph_of(a=says("a"), slow=slow, c=says("c"))
    async with savers.fenced(runs.add()) as saver:
        assert (await run_graph(graph, saver, {"log": []}))["log"] == ["a", "slow", "c"]
    assert ran == ["slow"]


async def test_a_connection_that_dies_within_a_write_is_replaced(
    runs: Runs, savers: Savers, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_only(runs)
    tries = []
    plain_execute = AsyncClientCursor.execute

    async def dies(self: Any, *args: Any) -> Any:
        tries.append(1)
        if len(tries) in (2, 3):
            await self.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return await plain_execute(self, *args)

    monkeypatch.setattr(AsyncClientCursor, "execute", dies)
    async with savers.fenced(runs.add()) as saver:
        result = await run_graph(graph_of(a=says("a"), b=says("b")), saver, {"log": []})
    assert result["log"] == ["a", "b"]


async def test_many_workers_create_the_tables_at_once(runs: Runs) -> None:
    async def one() -> None:
        savers = Savers.for_url(runs.url, types=None)
        await savers.open()
        await savers.aclose()

    await asyncio.gather(*(one() for _ in range(8)))
    assert set(runs.checkpoint_rows().values()) == {0}


async def test_a_busy_sqlite_file_is_waited_for(runs: Runs, savers: Savers) -> None:
    if "postgres" in runs.url:
        pytest.skip("PostgreSQL locks rows")
    stop = threading.Event()

    def hog() -> None:  # another process's long transactions
        with runs.engine.connect() as connection:
            while not stop.is_set():
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                connection.exec_driver_sql("UPDATE runs SET attempts = attempts + 1")
                time.sleep(0.02)
                connection.exec_driver_sql("COMMIT")
                time.sleep(0.02)

    leases = [runs.add(f"r{n}") for n in range(8)]
    thread = threading.Thread(target=hog)
    thread.start()
    graph = graph_of(a=says("a"), b=says("b"))

    async def one(lease: Lease) -> Any:
        async with savers.fenced(lease) as saver:
            return await run_graph(graph, saver, {"log": []}, lease.run_id)

    try:
        results = await asyncio.gather(*map(one, leases))
    finally:
        stop.set()
        thread.join()
    assert results == [{"log": ["a", "b"]}] * 8


@pytest.mark.parametrize("stage", ["execute", "commit"])
async def test_a_write_holds_no_lock_while_the_loop_is_blocked(
    runs: Runs, savers: Savers, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """A node that calls the store from the loop must not wait for a sibling's write."""
    called = []

    def on_the_loop(owner: Any, name: str) -> None:
        whole = getattr(owner, name)

        async def halfway(self: Any, *args: Any, **kw: Any) -> Any:
            result = await whole(self, *args, **kw)
            runs.change(attempts=1)
            called.append(name)
            return result

        monkeypatch.setattr(owner, name, halfway)

    if "sqlite" in runs.url:
        on_the_loop(
            aiosqlite.Connection if stage == "commit" else aiosqlite.Cursor,
            {"commit": "commit", "execute": "executemany"}[stage],
        )
    else:
        on_the_loop(AsyncPostgresSaver, "aput" if stage == "commit" else "aput_writes")
    graph = graph_of(a=says("a"), b=says("b"))
    async with asyncio.timeout(10), savers.fenced(runs.add()) as saver:
        assert await run_graph(graph, saver, {"log": []}) == {"log": ["a", "b"]}
    assert called


async def test_a_cancelled_write_leaves_no_lock(
    runs: Runs, savers: Savers, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def hangs(self: Any, *_: Any) -> None:
        reached.set()
        await asyncio.sleep(60)

    owner = aiosqlite.Connection if "sqlite" in runs.url else AsyncPostgresSaver
    name = "commit" if "sqlite" in runs.url else "aput_writes"
    where = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    async with savers.fenced(runs.add()) as saver:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, hangs)
            writing = asyncio.ensure_future(saver.aput_writes(where, [("c", 1)], "task"))
            await reached.wait()
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
        runs.change(attempts=1)
        await saver.aput_writes(where, [("c", 1)], "task")
    assert list(runs.checkpoint_rows().values()) == [0, 1]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/d", "no url"])
def test_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    with pytest.raises(StoreError):
        Savers.for_url(url, types=None)


async def test_a_server_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_durable.checkpoint.postgres.OUTAGE_SECONDS", 0.5)
    savers = Savers.for_url("postgresql+psycopg://u@/d?host=/nowhere", types=None)
    with pytest.raises(StoreError, match="can't be reached"):
        await savers.open()
