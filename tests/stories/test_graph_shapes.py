"""What people build with LangGraph works in both modes, and asks, fails and retries as it should."""

from __future__ import annotations

import asyncio
import operator
import threading
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel
from shop import Shop, failed, succeeded, waits

from langgraph_durable import Retry, RunContext, Status, current_run
from langgraph_durable.errors import BadInput


class Notes(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]
    n: int


class Counted:
    """A function that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, name: str = "") -> Any:
        def call() -> str:
            self.calls.append(name)
            return name

        return call


def chain(*nodes: tuple[str, Any], **options: Any) -> StateGraph[Any]:
    graph = StateGraph(Notes)
    last = START
    for name, node in nodes:
        graph.add_node(name, node, **options)
        graph.add_edge(last, name)
        last = name
    return graph


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_builders_and_compiled_graphs_sync_and_async_nodes(
    shop: Shop, mode: str, compiled: bool, kind: str
) -> None:
    step = Counted()

    async def a(_state: Notes, runtime: Runtime[RunContext]) -> Notes:
        return {
            "notes": [await runtime.context.once("a", step("a")), await current_run().ask("q", "?")]
        }

    def b(_state: Notes, runtime: Runtime[RunContext]) -> Notes:
        ctx = runtime.context.blocking
        return {"notes": [ctx.once("a", step("a")), current_run().blocking.ask("q", "?")]}

    graph: Any = chain(("a", a if kind == "async" else b))
    shop.deploy(graph.compile() if compiled else graph, mode)
    waits(shop.begin({"notes": []}))
    assert succeeded(shop.answer("yes"))["notes"] == ["a", "yes"]
    assert step.calls == ["a"]


def test_blocking_methods_in_an_async_node_are_refused_with_a_way_out(
    shop: Shop, mode: str
) -> None:
    async def node(_state: Notes) -> Notes:
        return {"notes": [current_run().blocking.now("t")]}

    shop.deploy(chain(("node", node)), mode, {"max_attempts": 1})
    assert "await ctx itself" in failed(shop.begin({"notes": []}))["message"]


@pytest.mark.parametrize("way", ["interrupt", "ctx"])
def test_send_loops_branches_and_goto_together(any_shop: Shop, mode: str, way: str) -> None:
    """fan out by Send → join → a loop by Command(goto) that asks in each pass."""
    shop, step = any_shop, Counted()

    async def worker(state: Notes) -> Notes:
        n = state["n"]
        return {"notes": [await current_run().once(f"work:{n}", step(f"work {n}"))]}

    async def loop(state: Notes) -> Command[Literal["loop", "end"]]:
        n = state.get("n", 0)
        if way == "interrupt":
            answer = interrupt({"pass": n})
        else:
            answer = await current_run().ask(f"ask:{n}", {"pass": n})
        goto: Literal["loop", "end"] = "loop" if n < 1 else "end"
        return Command(goto=goto, update={"n": n + 1, "notes": [answer]})

    graph = StateGraph(Notes)
    graph.add_node(worker)
    graph.add_node(loop)
    graph.add_node("end", lambda _: {"notes": ["end"]})
    graph.add_conditional_edges(START, lambda _: [Send("worker", {"n": n}) for n in range(3)])
    graph.add_edge("worker", "loop")
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": [], "n": 0}))
    output = succeeded(shop.answer_all(lambda q: f"answer {q.payload['pass']}"))
    assert output["notes"] == ["work 0", "work 1", "work 2", "answer 0", "answer 1", "end"]
    assert sorted(step.calls) == ["work 0", "work 1", "work 2"]


@pytest.mark.promise("S-10")
@pytest.mark.parametrize("loops_in", ["the node", "the graph", "the graph, across passes"])
def test_a_loop_without_its_index_in_the_key_is_told_so(
    shop: Shop, mode: str, loops_in: str
) -> None:
    step = Counted()

    async def node(state: Notes) -> Notes:
        n = state.get("n", 0)
        if "across" in loops_in:
            await current_run().ask(f"ask:{n}", "?")
        got = [await current_run().once("same", step("x"))]
        if loops_in == "the node":
            got.append(await current_run().once("same", step("x")))
        return {"notes": got, "n": n + 1}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda s: END if s["n"] == 2 else "node")
    shop.deploy(graph, mode)
    shop.begin({"notes": [], "n": 0})
    if "across" in loops_in:
        waits(shop.run)
        shop.answer_all(lambda _: "yes")
    error = failed(shop.run)
    assert error["type"] == "DuplicateKey"
    assert "index" in error["message"]
    assert step.calls == ["x"]


@pytest.mark.parametrize("way", ["interrupt", "ctx"])
def test_the_functional_api_with_tasks_and_a_question(shop: Shop, mode: str, way: str) -> None:
    step = Counted()

    @task
    async def double(n: int) -> int:
        await current_run().once(f"double:{n}", step(f"double {n}"))
        return 2 * n

    @task
    async def ask(question: str) -> Any:
        if way == "interrupt":
            return interrupt(question)
        return await current_run().ask(f"ask:{question}", question)

    @entrypoint()
    async def flow(given: dict[str, int]) -> dict[str, Any]:
        parts = await asyncio.gather(double(given["n"]), double(given["n"] + 1))
        here = interrupt("here") if way == "interrupt" else await current_run().ask("here", "here")
        return {"parts": parts, "task": await ask("in a task"), "here": here}

    shop.deploy(flow, mode)
    waits(shop.begin({"n": 1}))
    output = succeeded(shop.answer_all(lambda q: f"{q.payload}!"))
    assert output == {"parts": [2, 4], "task": "in a task!", "here": "here!"}
    assert sorted(step.calls) == ["double 1", "double 2"]


def test_a_node_retry_policy_uses_its_keys_again(shop: Shop, mode: str) -> None:
    step, tries = Counted(), []

    async def flaky(_state: Notes) -> Notes:
        got = await current_run().once("step", step("step"))
        tries.append("try")
        if len(tries) < 3:
            raise ConnectionError("away")
        return {"notes": [got]}

    policy = RetryPolicy(max_attempts=3, initial_interval=0.0, jitter=False)
    shop.deploy(chain(("flaky", flaky), retry_policy=policy), mode)
    assert succeeded(shop.begin({"notes": []}))["notes"] == ["step"]
    assert (step.calls, len(tries), shop.run.attempts) == (["step"], 3, 0)


def test_a_retried_node_that_calls_a_graph_uses_its_keys_again(shop: Shop, mode: str) -> None:
    step, tries = Counted(), []

    async def inside(_state: Notes) -> Notes:
        return {"notes": [await current_run().once("inside", step("inside"))]}

    inner = chain(("inside", inside)).compile()

    async def flaky(_state: Notes) -> Notes:
        got = await inner.ainvoke({"notes": []})
        tries.append("try")
        if len(tries) < 3:
            raise ConnectionError("away")
        return {"notes": got["notes"]}

    policy = RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False)
    shop.deploy(chain(("flaky", flaky), retry_policy=policy), mode)
    assert succeeded(shop.begin({"notes": []}))["notes"] == ["inside"]
    assert (step.calls, len(tries)) == (["inside"], 3)


@pytest.mark.promise("S-11")
def test_a_node_error_is_requeued_with_its_journal(any_shop: Shop, mode: str) -> None:
    shop, step, fails = any_shop, Counted(), [True]

    async def first(_state: Notes) -> Notes:
        return {"notes": [await current_run().once("first", step("first"))]}

    async def second(_state: Notes) -> Notes:
        got = await current_run().once("second", step("second"))
        if fails[0]:
            fails[0] = False
            raise ValueError("once")
        return {"notes": [got]}

    shop.deploy(chain(("first", first), ("second", second)), mode)
    shop.submit({"notes": []})
    from langgraph_durable import Worker

    Worker(shop.durable).run_once()
    assert (shop.run.status, shop.run.attempts) == (Status.QUEUED, 1)
    assert succeeded(shop.work())["notes"] == ["first", "second"]
    assert step.calls == ["first", "second"]


def test_attempts_run_out(shop: Shop, mode: str) -> None:
    tries: list[int] = []

    def node(_state: Notes) -> Notes:
        tries.append(1)
        raise ValueError("always")

    shop.deploy(chain(("node", node)), mode, {"max_attempts": 3})
    error = failed(shop.begin({"notes": []}))
    assert (error["type"], error["message"], len(tries)) == ("ValueError", "always", 3)


@pytest.mark.promise("S-68")
def test_a_step_is_retried_in_place_and_has_a_timeout(shop: Shop, mode: str) -> None:
    tries: list[str] = []

    async def flaky() -> str:
        tries.append("flaky")
        if len(tries) < 3:
            raise ConnectionError("away")
        return "ok"

    async def slow() -> None:
        await asyncio.sleep(5)

    async def own() -> None:
        raise TimeoutError("the call's own")

    async def node(_state: Notes) -> Notes:
        ctx, got = current_run(), []
        got.append(await ctx.once("flaky", flaky, retry=Retry(attempts=3, first_seconds=0)))
        for key, call in (("slow", slow), ("own", own)):
            try:
                await ctx.once(key, call, timeout_seconds=0.05)
            except TimeoutError as error:
                got.append(type(error).__name__)
        return {"notes": got}

    shop.deploy(chain(("node", node)), mode)
    assert succeeded(shop.begin({"notes": []}))["notes"] == ["ok", "StepTimeout", "TimeoutError"]
    assert shop.journal["flaky"].attempts == 3
    assert shop.journal["slow"].state == "failed"
    assert "0.05 s" in str(shop.journal["slow"].error)


@dataclass
class Settings:
    colour: str = "grey"


@pytest.mark.parametrize("given", [None, Settings("red")])
def test_a_graph_keeps_its_own_context_schema(shop: Shop, mode: str, given: Any) -> None:
    async def node(_state: Notes, runtime: Runtime[Settings]) -> Notes:
        colour = runtime.context.colour if runtime.context else "no context"
        return {"notes": [colour, await current_run().once("step", lambda: "step")]}

    graph = StateGraph(Notes, context_schema=Settings)
    graph.add_node(node)
    graph.add_edge(START, "node")
    shop.deploy(graph, mode, {"context": given})
    expected = "red" if given else "no context"
    assert succeeded(shop.begin({"notes": []}))["notes"] == [expected, "step"]


def test_graph_mode_replaces_a_checkpointer_on_a_copy_and_keeps_the_store(shop: Shop) -> None:
    async def node(_state: Notes, *, store: BaseStore) -> Notes:
        await store.aput(("ns",), "key", {"seen": True})
        return {"notes": [interrupt("?")]}

    theirs, store = InMemorySaver(), InMemoryStore()
    graph = chain(("node", node)).compile(checkpointer=theirs, store=store)
    shop.deploy(graph, "graph")
    waits(shop.begin({"notes": []}))
    assert succeeded(shop.answer("yes"))["notes"] == ["yes"]
    assert graph.checkpointer is theirs
    assert list(theirs.list(None)) == []
    assert store.get(("ns",), "key").value == {"seen": True}  # type: ignore[union-attr]


def test_steps_mode_refuses_what_it_can_not_keep(shop: Shop) -> None:
    graph = chain(("node", lambda _: {"notes": []}))
    with pytest.raises(BadInput, match="without a checkpointer"):
        shop.deploy(graph.compile(checkpointer=InMemorySaver()), "steps")
    with pytest.raises(BadInput, match="interrupt_before"):
        shop.deploy(graph.compile(interrupt_before=["node"]), "steps")


def test_steps_mode_refuses_a_graph_inside_that_keeps_its_own_state(shop: Shop) -> None:
    inner = chain(("ask", lambda _: {"notes": [interrupt("?")]})).compile(checkpointer=True)

    async def seen(_state: Notes) -> Notes:
        return await inner.ainvoke({"notes": []})  # type: ignore[return-value]

    hidden = {"graph": inner}

    async def unseen(_state: Notes) -> Notes:
        return await hidden["graph"].ainvoke({"notes": []})  # type: ignore[return-value]

    with pytest.raises(BadInput, match=r"node 'caller' calls a graph .* checkpointer=True"):
        shop.deploy(chain(("caller", seen)), "steps")
    shop.deploy(chain(("caller", unseen)), "steps")
    error = failed(shop.begin({"notes": []}))
    assert error["type"] == "BadInput"
    assert (
        "node 'caller' calls a graph that was compiled with checkpointer=True" in error["message"]
    )
    assert shop.run.attempts == 0
    shop.deploy(chain(("caller", seen)), "graph")
    waits(shop.begin({"notes": []}))
    assert succeeded(shop.answer("yes"))["notes"] == ["yes"]


def test_graph_state_that_can_not_be_kept_is_named_and_not_tried_again(any_shop: Shop) -> None:
    any_shop.deploy(chain(("node", lambda _: {"notes": [{"lock": threading.Lock()}]})), "graph")
    error = failed(any_shop.begin({"notes": []}))
    assert error["type"] == "NotEncodable"
    assert "agent 'agent', the graph's state: the value at $.notes[0].lock" in error["message"]
    assert "_thread.lock" in error["message"]
    assert any_shop.run.attempts == 0


@pytest.mark.parametrize("where", ["before", "after", "before all"])
def test_breakpoints_wait_for_an_approval_each(any_shop: Shop, where: str) -> None:
    shop, ran = any_shop, []

    def node(name: str) -> Any:
        def run(_state: Notes) -> Notes:
            ran.append(name)
            return {"notes": [name]}

        return run

    options: dict[str, Any] = {
        "before": {"interrupt_before": ["b"]},
        "after": {"interrupt_after": ["a"]},
        "before all": {"interrupt_before": "*"},
    }[where]
    graph = chain(*((name, node(name)) for name in "abc")).compile(**options)
    shop.deploy(graph, "graph")
    waits(shop.begin({"notes": []}))
    stops = 0
    while shop.run.status is Status.WAITING_HUMAN:
        assert [q.kind for q in shop.asked] == ["breakpoint"]
        stops += 1
        shop.approve()
    assert succeeded(shop.run)["notes"] == ["a", "b", "c"]
    assert ran == ["a", "b", "c"]
    assert stops == (3 if where == "before all" else 1)


def test_a_failure_past_a_breakpoint_is_no_breakpoint(shop: Shop) -> None:
    fails = [True]

    def c(_state: Notes) -> Notes:
        if fails[0]:
            fails[0] = False
            raise ValueError("once")
        return {"notes": ["c"]}

    nodes = (("a", lambda _: {"notes": ["a"]}), ("b", lambda _: {"notes": ["b"]}), ("c", c))
    shop.deploy(chain(*nodes).compile(interrupt_after=["a"]), "graph")
    waits(shop.begin({"notes": []}))
    assert succeeded(shop.approve())["notes"] == ["a", "b", "c"]
    assert len(shop.durable.questions(run_id=shop.run_id, state=None)) == 1


class Ticket(BaseModel):
    text: str
    cents: int = 0
    ok: bool = False


def test_pydantic_state(shop: Shop, mode: str) -> None:
    def price(state: Ticket) -> dict[str, Any]:
        assert isinstance(state, Ticket)
        return {"cents": 42}

    def gate(state: Ticket) -> dict[str, Any]:
        return {"ok": interrupt({"cents": state.cents}) == "yes"}

    graph = StateGraph(Ticket)
    graph.add_node(price)
    graph.add_node(gate)
    graph.add_edge(START, "price")
    graph.add_edge("price", "gate")
    shop.deploy(graph, mode)
    waits(shop.begin({"text": "hi"}))
    assert succeeded(shop.answer("yes")) == {"text": "hi", "cents": 42, "ok": True}


def test_a_recursion_limit_is_respected(shop: Shop, mode: str) -> None:
    passes: list[int] = []

    def node(_state: Notes) -> Notes:
        passes.append(1)
        return {"notes": [1]}

    graph = StateGraph(Notes)
    graph.add_node(node)
    graph.add_edge(START, "node")
    graph.add_edge("node", "node")
    shop.deploy(graph.compile().with_config(recursion_limit=4), mode, {"max_attempts": 1})
    assert failed(shop.begin({"notes": []}))["type"] == "GraphRecursionError"
    assert len(passes) == 4


def test_a_sibling_that_fails_does_not_hide_a_question(shop: Shop, mode: str) -> None:
    fails = [True]

    async def asks(_state: Notes) -> Notes:
        return {"notes": [interrupt("?")]}

    async def breaks(_state: Notes) -> Notes:
        await asyncio.sleep(0.05)
        if fails[0]:
            fails[0] = False
            raise ValueError("once")
        return {"notes": ["fine"]}

    graph = StateGraph(Notes)
    graph.add_node(asks)
    graph.add_node(breaks)
    graph.add_edge(START, "asks")
    graph.add_edge(START, "breaks")
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    assert sorted(succeeded(shop.answer("yes"))["notes"]) == ["fine", "yes"]
    assert len(shop.durable.questions(run_id=shop.run_id, state=None)) == 1


def test_native_and_ctx_questions_in_one_superstep_are_put_together(shop: Shop, mode: str) -> None:

    async def native(_state: Notes) -> Notes:
        return {"notes": [interrupt("native")]}

    async def ours(_state: Notes) -> Notes:
        await current_run().once("before", lambda: 1)
        return {"notes": [await current_run().ask("ours", "ours")]}

    graph = StateGraph(Notes)
    graph.add_node(native)
    graph.add_node(ours)
    graph.add_edge(START, "native")
    graph.add_edge(START, "ours")
    shop.deploy(graph, mode)
    waits(shop.begin({"notes": []}))
    assert sorted(q.payload for q in shop.asked) == ["native", "ours"]
    assert sorted(succeeded(shop.answer_all(lambda q: q.payload))["notes"]) == ["native", "ours"]
    assert len(shop.durable.questions(run_id=shop.run_id, state=None)) == 2


def test_a_graph_command_to_a_parent_that_is_not_there_is_an_error(shop: Shop, mode: str) -> None:
    def node(_state: Notes) -> Any:
        return Command(graph=Command.PARENT, goto="nowhere")

    shop.deploy(chain(("node", node)), mode, {"max_attempts": 2})
    assert failed(shop.begin({"notes": []}))["attempts"] == 2


def test_state_that_can_not_be_copied_works_with_native_questions(shop: Shop) -> None:
    import threading

    def node(state: Notes) -> Notes:
        return {"notes": [interrupt("?")]}

    graph = chain(("lock", lambda _: {"notes": [threading.Lock()]}), ("node", node))
    shop.deploy(graph, "steps")
    waits(shop.begin({"notes": []}))
    output = succeeded(shop.answer("yes"))
    assert "lock" in str(output["notes"])
    assert "output_not_encodable" in shop.events
