"""Agents made by `create_agent` and plain ToolNodes, durable in both modes, on SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    TodoListMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import BaseTool, InjectedToolArg, ToolException, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.types import interrupt
from pydantic import BaseModel

from langgraph_durable import Decision, Effect, Rule, Status
from langgraph_durable.integrations.langchain import (
    DurableMiddleware,
    durable_model,
    durable_tool,
)
from langgraph_durable.runs import StepState
from tests.stories.langchain_desk import Desk, World, calls, last_words, said

promise = pytest.mark.promise


@pytest.fixture(params=["steps", "graph"])
def desk(request: pytest.FixtureRequest, sqlite_url: str) -> Desk:
    return Desk(sqlite_url, request.param)


def tools_of(world: World) -> list[BaseTool]:
    @tool
    def look(invoice: str) -> str:
        """Look an invoice up."""
        return f"{invoice} is open ({world.do('look')})"

    @tool
    def pay(
        amount: int,
        idempotency_key: Annotated[str, InjectedToolArg],
        fencing_token: Annotated[int, InjectedToolArg],
    ) -> str:
        """Pay an amount back."""
        world.do("pay")
        world.paid.append((amount, idempotency_key, fencing_token))
        return f"paid {amount}"

    return [look, pay]


def durable(**more: Any) -> DurableMiddleware:
    return DurableMiddleware(reads=["look"], effects={"pay": "idempotent"}, **more)


class Verdict(BaseModel):
    refund: bool


PAY = [calls(("look", {"invoice": "A"})), calls(("pay", {"amount": 42}), first=2), last_words]
BOTH = [calls(("look", {"invoice": "A"}), ("pay", {"amount": 42})), last_words]


# --- crashes ---------------------------------------------------------------------------


@promise("S-08")
def test_after_a_crash_no_recorded_call_is_made_again(desk: Desk) -> None:
    """The lease is lost while the second tool runs: model and first tool answer from the journal."""
    look, pay = tools_of(desk.world)

    @tool
    def pay_and_die(amount: int, idempotency_key: str, fencing_token: int) -> str:
        """Pay, and lose the lease before it is recorded."""
        if desk.world.done["pay"] == 0:
            desk.steal()
        call = {"amount": amount, "idempotency_key": idempotency_key}
        return str(pay.invoke({**call, "fencing_token": fencing_token}))

    pay_and_die.name = "pay"
    desk.agent(PAY, [look, pay_and_die], durable())
    run_id = desk.submit()
    assert desk.work(run_id).status is Status.SUCCEEDED  # the same worker found it again
    run = desk.durable.get(run_id)
    assert desk.world.done == {"look": 1, "pay": 2}
    assert desk.asked == 3
    (_, key, first), (_, again, second) = desk.world.paid
    assert key == again
    assert key.startswith(f"{run_id}:")
    assert first < second  # the fencing token grew
    assert "paid 42" in said(run)
    ids = [message.id for message in run.output["messages"]]
    assert [i for i in ids if i.startswith(run_id)] == [ids[2], ids[4]]  # not made up each pass
    assert run.usage.model_calls == 3
    assert run.usage.tool_calls == 2


def test_parallel_tool_calls_are_journaled_by_key_and_not_by_order(desk: Desk) -> None:
    started: list[str] = []

    @tool
    async def slow(n: int) -> str:
        """Answer late; the lower the number, the later."""
        started.append(f"begin {n}")
        await asyncio.sleep(0.05 / n)
        if desk.world.do(f"slow {n}") == 1 and n == 1:
            desk.steal()
        return f"slow {n}"

    script = [calls(*(("slow", {"n": n}) for n in (1, 2, 3))), last_words]
    desk.agent(script, [slow], DurableMiddleware(reads=["slow"]))
    run = desk.work(desk.submit())
    assert said(run) == "slow 1 | slow 2 | slow 3"  # in the order of the calls
    assert started[:3] == ["begin 1", "begin 2", "begin 3"]  # at once
    assert desk.world.done == {"slow 1": 2, "slow 2": 1, "slow 3": 1}
    assert desk.asked == 2


def test_a_model_that_numbers_the_calls_of_each_message_anew_gets_its_own_keys(desk: Desk) -> None:
    turns = [calls(("pay", {"amount": n})) for n in (1, 2)]
    desk.agent([*turns, last_words], tools_of(desk.world), durable())
    run = desk.work(desk.submit())
    assert said(run) == "paid 1 | paid 2"
    assert len({key for _, key, _ in desk.world.paid}) == 2


# --- people ----------------------------------------------------------------------------


def test_one_of_two_parallel_calls_waits_for_a_person(desk: Desk) -> None:
    desk.agent(BOTH, tools_of(desk.world), durable(asks=["pay"]))
    run = desk.work(desk.submit())
    assert run.status is Status.WAITING_HUMAN
    assert desk.world.done == {"look": 1}  # it ended and is recorded; pay was not called
    (question,) = run.questions
    assert (question.tool, question.payload) == ("local.pay", {"amount": 42})
    assert set(question.schema["properties"]) == {"amount"}  # type: ignore[index]

    desk.agent(BOTH, tools_of(desk.world), durable(asks=["pay"]))  # a new process
    desk.durable.decide(question.id, Decision.approve("mei"))
    run = desk.work(run.id)
    assert said(run) == "A is open (1) | paid 42"
    assert desk.world.done == {"look": 1, "pay": 1}
    assert desk.asked == 2
    paid = next(s for s in desk.durable.journal(run.id) if s.name == "local.pay")
    assert paid.approval_id


@pytest.mark.parametrize("choice", ["edit", "reject"])
def test_an_edited_or_refused_call_is_told_to_the_model(desk: Desk, choice: str) -> None:
    desk.options = {"rules": [Rule("ask", tool="pay", when={"argument": "amount", "more_than": 9})]}
    desk.agent(BOTH, tools_of(desk.world), durable())
    run = desk.work(desk.submit())
    (question,) = run.questions
    edit = Decision.edit("mei", {"amount": 7})
    desk.durable.decide(
        question.id, edit if choice == "edit" else Decision.reject("mei", "too much")
    )
    desk.agent(BOTH, tools_of(desk.world), durable())
    run = desk.work(run.id)
    assert run.status is Status.SUCCEEDED
    answer = run.output["messages"][-2]
    if choice == "edit":
        assert (answer.content, answer.status) == ("paid 7", "success")
        assert [amount for amount, _, _ in desk.world.paid] == [7]
    else:
        assert answer.content == "The call was refused by mei: too much"
        assert answer.status == "error"
        assert desk.world.paid == []
    assert desk.asked == 2


@promise("H-17")
def test_retry_middleware_around_a_pause_pauses_once(desk: Desk) -> None:
    """H-17 (d): no retries counted, no error recorded."""

    def build() -> None:
        desk.agent(
            BOTH,
            tools_of(desk.world),
            ToolRetryMiddleware(max_retries=3, initial_delay=0.0),
            ModelRetryMiddleware(max_retries=3, initial_delay=0.0),
            durable(asks=["pay"]),
        )

    build()
    run = desk.work(desk.submit())
    assert run.status is Status.WAITING_HUMAN
    assert len(run.questions) == 1
    assert [s for s in desk.durable.journal(run.id) if s.state is StepState.FAILED] == []
    build()
    desk.durable.decide(run.questions[0].id, Decision.approve("mei"))
    run = desk.work(run.id)
    assert said(run) == "A is open (1) | paid 42"
    assert desk.asked == 2
    assert all(step.attempts == 1 for step in desk.durable.journal(run.id))


# --- failures --------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["retry inside", "retry outside"])
def test_a_tool_that_fails_once_is_tried_again_in_its_step(desk: Desk, order: str) -> None:
    @tool
    def flaky() -> str:
        """Fail at first."""
        if desk.world.do("flaky") == 1:
            raise ConnectionError("no route")
        return "fine"

    both = [DurableMiddleware(reads=["flaky"]), ToolRetryMiddleware(initial_delay=0.0)]
    ordered = both if order == "retry inside" else both[::-1]
    desk.agent([calls(("flaky", {})), last_words], [flaky], *ordered)
    run = desk.work(desk.submit())
    assert said(run) == "fine"
    assert desk.world.done == {"flaky": 2}


def test_a_failure_that_the_model_was_told_is_not_tried_again_on_replay(desk: Desk) -> None:
    @tool
    def charge(amount: int, idempotency_key: str) -> str:
        """Fail the first two times."""
        if desk.world.do("charge") <= 2:
            raise ConnectionError("no route")
        return "charged"

    def build() -> None:
        script = [calls(("charge", {"amount": 1})), calls(("pay", {"amount": 2})), last_words]
        desk.agent(
            script,
            [charge, *tools_of(desk.world)],
            DurableMiddleware(
                reads=["look"],
                effects={"charge": "idempotent", "pay": "idempotent"},
                asks=["pay"],
            ),
            ToolRetryMiddleware(max_retries=1, initial_delay=0.0),
        )

    build()
    run = desk.work(desk.submit())
    assert run.status is Status.WAITING_HUMAN
    build()
    desk.durable.decide(run.questions[0].id, Decision.approve("mei"))
    run = desk.work(run.id)
    assert "failed after 2 attempts" in said(run)
    assert desk.world.done == {"charge": 2, "pay": 1}


@promise("H-02")
def test_a_call_that_can_not_be_repeated_is_not_repeated_by_retry_middleware(desk: Desk) -> None:
    @tool
    def wire(amount: int) -> str:
        """Send money, and break."""
        desk.world.do("wire")
        raise TimeoutError("no answer")

    desk.agent(
        [calls(("wire", {"amount": 1})), last_words],
        [wire],
        DurableMiddleware(effects={"wire": Effect.ONCE}),
        ToolRetryMiddleware(max_retries=3, initial_delay=0.0),
    )
    run_id = desk.submit()
    desk.work(run_id)
    run = wait_for_retry(desk, run_id)
    assert desk.world.done == {"wire": 1}
    (question,) = run.questions
    assert question.kind == "outcome"
    desk.durable.decide(question.id, Decision.respond("mei", "sent, reference 7"))
    assert said(desk.work(run_id)) == "sent, reference 7"
    assert desk.world.done == {"wire": 1}


def test_a_once_tool_that_says_it_failed_may_be_tried_again(desk: Desk) -> None:
    @tool
    def wire(amount: int) -> str:
        """Refuse at first."""
        if desk.world.do("wire") == 1:
            raise ToolException("closed")
        return "sent"

    desk.agent(
        [calls(("wire", {"amount": 1})), last_words],
        [wire],
        DurableMiddleware(effects={"wire": "once"}),
        ToolRetryMiddleware(max_retries=3, initial_delay=0.0),
    )
    assert said(desk.work(desk.submit())) == "sent"
    assert desk.world.done == {"wire": 2}


def test_the_answer_of_a_fallback_model_is_the_recorded_one(desk: Desk) -> None:
    def broken(messages: Sequence[BaseMessage]) -> AIMessage:
        raise ConnectionError("model is away")

    def build() -> None:
        other = desk.model(*BOTH)
        desk.agent(
            [broken, broken],
            tools_of(desk.world),
            durable(asks=["pay"]),
            ModelFallbackMiddleware(other),
        )

    build()
    run = desk.work(desk.submit())
    build()
    desk.durable.decide(run.questions[0].id, Decision.approve("mei"))
    assert said(desk.work(run.id)) == "A is open (1) | paid 42"
    assert desk.asked == 4  # twice the broken one and twice the other


def wait_for_retry(desk: Desk, run_id: str) -> Any:
    """A failed pass is tried again after a short backoff."""
    for _ in range(100):
        run = desk.work(run_id)
        if run.status is not Status.QUEUED:
            return run
        asyncio.run(asyncio.sleep(0.05))
    raise AssertionError("the run stays queued")


# --- refusals --------------------------------------------------------------------------


def test_an_undeclared_tool_is_refused_before_anything_is_paid(desk: Desk) -> None:
    desk.agent(BOTH, tools_of(desk.world), DurableMiddleware(reads=["look"]))
    run = desk.work(desk.submit())
    assert run.status is Status.FAILED
    assert "tool 'pay' of this agent is registered without an effect" in str(run.error)
    assert desk.asked == 0


def test_arguments_that_do_not_fit_are_told_to_the_model_and_nobody_is_asked(desk: Desk) -> None:
    script = [calls(("pay", {"amount": "much"})), last_words]
    desk.agent(script, tools_of(desk.world), durable(asks=["pay"]))
    run = desk.work(desk.submit())
    assert run.status is Status.SUCCEEDED
    assert "Error invoking tool 'pay': amount" in said(run)
    assert desk.world.done == {}


def test_a_model_never_sees_nor_sets_the_key(desk: Desk) -> None:
    @tool
    def pay(amount: int, idempotency_key: str) -> str:
        """Pay."""
        desk.world.paid.append((amount, idempotency_key, 0))
        return "paid"

    script = [calls(("pay", {"amount": 1, "idempotency_key": "mine"})), last_words]
    desk.agent(script, [pay], DurableMiddleware(effects={"pay": "idempotent"}))
    run = desk.work(desk.submit())
    assert run.status is Status.SUCCEEDED
    assert set(desk.models[0].bound[0].model_fields) == {"amount"}
    assert desk.world.paid[0][1].startswith(f"{run.id}:")


def test_a_tool_that_is_on_the_hub_needs_no_other_declaration(desk: Desk) -> None:
    from langgraph_durable import ToolHub

    hub = ToolHub()
    look, pay = tools_of(desk.world)
    hub.add(look, effect="read", server="billing")
    hub.add(pay, effect="idempotent", server="billing", asks=True)
    desk.options = {"tools": hub}
    desk.agent(BOTH, [look, pay], DurableMiddleware())
    run = desk.work(desk.submit())
    (question,) = run.questions
    assert question.tool == "billing.pay"


def test_a_changed_call_is_not_told_to_the_model_as_a_failed_one(desk: Desk) -> None:
    """A ToolNode that handles every error can't hide that the code isn't deterministic."""

    def build() -> None:
        def model(state: MessagesState) -> Any:
            n = desk.world.do("model")  # not a step: each pass asks for something else
            return {"messages": [calls(("look", {"invoice": str(n)}))]}

        def ask(state: MessagesState) -> Any:
            return {"messages": [AIMessage(interrupt("go on?"))]}

        tools = ToolNode(
            [durable_tool(tools_of(desk.world)[0], effect="read")], handle_tool_errors=True
        )
        graph = StateGraph(MessagesState)
        graph.add_node("model", model)
        graph.add_node("tools", tools)
        graph.add_node("ask", ask)
        graph.add_edge(START, "model")
        graph.add_edge("model", "tools")
        graph.add_edge("tools", "ask")
        desk.graph(graph)

    build()
    run = desk.work(desk.submit())
    build()
    desk.durable.decide(run.questions[0].id, Decision.respond("mei", "yes"))
    run = desk.work(run.id)
    if desk.mode == "graph":  # a checkpoint stands between them
        assert run.status is Status.SUCCEEDED
    else:
        assert run.status is Status.FAILED
        assert run.error is not None
        assert run.error["type"] == "NonDeterminismError"


# --- LangChain's own human in the loop -------------------------------------------------


def in_the_loop(mode: Any, **allowed: Any) -> HumanInTheLoopMiddleware[Any, Any, Any]:
    return HumanInTheLoopMiddleware(
        interrupt_on={"pay": allowed or True}, interrupt_mode=mode, edit_notice=None
    )


@pytest.mark.parametrize("asking", ["batched", "per_call"])
@pytest.mark.parametrize(
    ("choice", "where"),
    [
        ("approve", "outside"),
        ("edit", "outside"),
        ("reject", "outside"),
        ("respond", "outside"),
        ("edit", "inside"),
        ("edit", "without"),
    ],
)
def test_human_in_the_loop_middleware_is_answered_by_decisions(
    desk: Desk, asking: str, choice: str, where: str
) -> None:
    """Across a restart, in both modes; listed before ours, after it, and without it."""

    def build() -> None:
        tools, loop = tools_of(desk.world), in_the_loop(asking)
        if where == "without":
            tools[1] = durable_tool(tools[1], effect="idempotent")
        order = {"outside": [loop, durable()], "inside": [durable(), loop], "without": [loop]}
        desk.agent(BOTH, tools, *order[where])

    build()
    run = desk.work(desk.submit())
    assert run.status is Status.WAITING_HUMAN, run.error
    (question,) = run.questions
    assert set(question.allowed) == {"approve", "edit", "reject", "respond"}
    decision = {
        "approve": Decision.approve("mei"),
        "edit": Decision.edit("mei", {"amount": 7}),
        "reject": Decision.reject("mei", "too much"),
        "respond": Decision.respond("mei", "paid by hand"),
    }[choice]
    build()
    desk.durable.decide(question.id, decision)
    run = desk.work(run.id)
    assert run.status is Status.SUCCEEDED, run.error
    want = {
        "approve": "paid 42",
        "edit": "paid 7",
        "reject": "too much",
        "respond": "paid by hand",
    }[choice]
    assert want in said(run)
    assert desk.world.done["pay"] == (choice in ("approve", "edit"))
    if where != "without":
        assert desk.world.done["look"] == 1
        assert desk.asked == 2


@pytest.mark.parametrize("asking", ["batched", "per_call"])
def test_what_the_middleware_does_not_allow_is_refused_and_the_question_stays_open(
    desk: Desk, asking: str
) -> None:
    from langgraph_durable.errors import BadInput

    loop = in_the_loop(asking, allowed_decisions=["approve", "reject"])
    desk.agent(BOTH, tools_of(desk.world), loop, durable())
    run = desk.work(desk.submit())
    (question,) = run.questions
    assert question.allowed == ("approve", "reject")
    for wrong in (
        Decision.edit("mei", {"amount": 1}),
        Decision.respond("mei", "no"),
        Decision.respond("mei", {"decisions": []}),
        Decision.respond("mei", {"type": "edit"}),
    ):
        with pytest.raises(BadInput):
            desk.durable.decide(question.id, wrong)
    assert len(desk.durable.questions(run_id=run.id)) == 1
    kind = {"type": "approve"}  # LangChain's own shape is taken as it is
    value = {"decisions": [kind]} if asking == "batched" else kind
    desk.durable.decide(question.id, Decision.respond("mei", value))
    assert "paid 42" in said(desk.work(run.id))


def test_two_calls_of_one_question_are_decided_together_or_each(desk: Desk) -> None:
    from langgraph_durable.errors import BadInput

    script = [calls(("pay", {"amount": 1}), ("pay", {"amount": 2})), last_words]
    desk.agent(script, tools_of(desk.world), in_the_loop("batched"), durable())
    run = desk.work(desk.submit())
    (question,) = run.questions
    with pytest.raises(BadInput, match="about 2 calls"):
        desk.durable.decide(question.id, Decision.edit("mei", {"amount": 3}))
    each = {"decisions": [{"type": "approve"}, {"type": "reject", "message": "one is enough"}]}
    desk.durable.decide(question.id, Decision.respond("mei", each))
    run = desk.work(run.id)
    assert [amount for amount, _, _ in desk.world.paid] == [1]
    assert "one is enough" in said(run)


# --- agents in agents, plain nodes -----------------------------------------------------


@pytest.mark.parametrize("way", ["async", "sync"])
@pytest.mark.parametrize("place", ["tool", "plain function"])
def test_an_agent_inside_is_durable_too(desk: Desk, way: str, place: str) -> None:
    """A subagent asks; on resume neither its model nor its tools are called again."""

    def inner() -> Any:
        # the same names, ids and shape as outside: only the place tells them apart
        return create_agent(
            desk.model(*BOTH), tools_of(desk.world), middleware=[durable(asks=["pay"])]
        )

    def build() -> None:
        @tool
        async def clerk(task: str) -> str:
            """Let a clerk do it."""
            done = await inner().ainvoke({"messages": [("user", task)]})
            return str(done["messages"][-1].content)

        @tool
        def slow_clerk(task: str) -> str:
            """Let a clerk do it."""
            done = inner().invoke({"messages": [("user", task)]})
            return str(done["messages"][-1].content)

        slow_clerk.name = "clerk"
        made = clerk if way == "async" else slow_clerk
        if place == "tool":
            script = [calls(("clerk", {"task": "a"}), ("clerk", {"task": "b"})), last_words]
            desk.agent(script, [made], DurableMiddleware(reads=["clerk"]))
            return
        desk.durable = type(desk.durable)(desk.url)

        @desk.durable.agent("agent")
        async def both(ctx: Any, inp: Any) -> Any:
            first = await made.ainvoke({"task": "a"})
            second = await made.ainvoke({"task": "b"})
            return {"messages": [AIMessage(f"{first} | {second}")]}

    build()
    run = desk.work(desk.submit())
    for _ in range(3):
        if run.status is not Status.WAITING_HUMAN:
            break
        build()
        for question in run.questions:
            desk.durable.decide(question.id, Decision.approve("mei"))
        run = desk.work(run.id)
    assert run.status is Status.SUCCEEDED, run.error
    assert said(run).count("paid 42") == 2
    assert desk.world.done == {"look": 2, "pay": 2}
    assert len({key for _, key, _ in desk.world.paid}) == 2
    assert desk.asked == (6 if place == "tool" else 4)
    assert len(set(desk.keys(run.id))) == len(desk.keys(run.id))


@promise("H-01")
def test_a_durable_tool_beside_an_asking_one_runs_once(desk: Desk) -> None:
    """H-01: one message calls ask, pay, ask in a plain ToolNode; a process for each answer."""

    def build() -> None:
        @tool
        def ask(what: str) -> str:
            """Ask a person."""
            return f"{what}: {interrupt(what)}"

        @tool
        def pay(amount: int, idempotency_key: str, state: Annotated[Any, InjectedState]) -> str:
            """Pay."""
            return f"paid {amount} ({desk.world.do('pay')}) of {len(state['messages'])}"

        async def model(state: MessagesState) -> Any:
            script = [calls(("ask", {"what": "A"}), ("pay", {"amount": 1}), ("ask", {"what": "B"}))]
            asked = durable_model(desk.model(*script, last_words))
            return {"messages": [await asked.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", model)
        graph.add_node("tools", ToolNode([ask, durable_tool(pay, effect="idempotent")]))
        graph.add_node("end", model)
        graph.add_edge(START, "model")
        graph.add_edge("model", "tools")
        graph.add_edge("tools", "end")
        graph.add_edge("end", END)
        desk.graph(graph.compile())

    build()
    run = desk.work(desk.submit())
    for _ in range(3):
        if run.status is not Status.WAITING_HUMAN:
            break
        question = run.questions[0]
        build()
        desk.durable.decide(question.id, Decision.respond("mei", f"yes to {question.payload}"))
        run = desk.work(run.id)
    assert said(run) == "A: yes to A | paid 1 (1) of 2 | B: yes to B"
    assert desk.world.done == {"pay": 1}
    assert desk.asked == 2


def test_a_durable_model_keeps_its_tools_and_its_answer(desk: Desk) -> None:
    models = []

    def build() -> None:
        async def node(state: MessagesState) -> Any:
            inner = desk.model(calls(("look", {"invoice": "A"})))
            models.append(inner)
            model = durable_model(inner).bind_tools(tools_of(desk.world))
            answer = await model.ainvoke([HumanMessage("look")])
            again = await model.ainvoke([HumanMessage("look again")])  # the second call of a node
            interrupt("go on?")
            return {"messages": [answer, again]}

        graph = StateGraph(MessagesState)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        desk.graph(graph)

    build()
    run = desk.work(desk.submit())
    build()
    desk.durable.decide(run.questions[0].id, Decision.respond("mei", "yes"))
    run = desk.work(run.id)
    assert desk.asked == 2
    assert models[0].bound
    assert [key for key in desk.keys(run.id) if key.endswith(("llm", "llm#2"))] == [
        "node@1:llm",
        "node@1:llm#2",
    ]
    assert run.output["messages"][-1].tool_calls[0]["name"] == "look"


def test_commands_and_structured_answers_come_back_from_the_journal(desk: Desk) -> None:
    def build() -> None:
        script = [
            calls(("write_todos", {"todos": [{"content": "look", "status": "pending"}]})),
            calls(("pay", {"amount": 1}), first=2),
            calls(("Verdict", {"refund": True}), first=3),
        ]
        model = desk.model(*script)
        agent = create_agent(
            model,
            tools_of(desk.world),
            middleware=[
                DurableMiddleware(
                    reads=["look", "write_todos"], effects={"pay": "idempotent"}, asks=["pay"]
                ),
                TodoListMiddleware(),
            ],
            response_format=ToolStrategy(Verdict),
        )
        desk.graph(agent)

    build()
    run = desk.work(desk.submit())
    assert run.status is Status.WAITING_HUMAN, run.error
    desk.durable.decide(run.questions[0].id, Decision.approve("mei"))
    run = desk.work(run.id)
    assert run.status is Status.FAILED
    assert "Verdict" in str(run.error)  # what can't be journaled is said, not lost
    assert "register" in str(run.error).lower()

    desk.options = {"types": [Verdict]}
    build()
    run = desk.work(desk.submit())
    build()
    desk.durable.decide(run.questions[0].id, Decision.approve("mei"))
    run = desk.work(run.id)
    assert run.status is Status.SUCCEEDED, run.error
    assert run.output["todos"] == [{"content": "look", "status": "pending"}]
    assert run.output["structured_response"] == Verdict(refund=True)
    assert desk.asked == 6  # three for each run
