"""The contract of a step (design §4): recorded once, told apart from others, never blindly repeated."""

from __future__ import annotations

import asyncio
import contextlib
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy
from shop import Shop, failed, succeeded, waits

from langgraph_durable import Decision, Effect, Retry, Rule, Status, ToolHub, Worker, current_run
from langgraph_durable.errors import AlreadyDecided, ToolError
from langgraph_durable.runs import Effect as E
from langgraph_durable.runs import Refused, StepState
from langgraph_durable.tools import ToolSpec
from langgraph_durable.tools import digest as digest_of


class Notes(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]


def one_node(node: Any) -> StateGraph[Notes]:
    graph = StateGraph(Notes)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph


class Killed(BaseException):
    """The worker dies here."""


class Bank:
    """A tool's world: what was paid, under which key; with `asks`, only by approval."""

    def __init__(self, effect: str = "idempotent", **options: Any) -> None:
        self.paid: list[dict[str, Any]] = []
        self.dies = self.fails = False
        self.hub = ToolHub()

        @self.hub.tool(effect=effect, **options)
        def pay(cents: int, idempotency_key: str = "", fencing_token: int = 0) -> dict[str, int]:
            if self.fails:
                self.fails = False
                raise ConnectionError("away")
            self.paid.append({"cents": cents, "key": idempotency_key, "token": fencing_token})
            if self.dies:
                self.dies = False
                raise Killed
            return {"paid": cents}

    @property
    def cents(self) -> list[int]:
        return [payment["cents"] for payment in self.paid]


def payer(cents: int = 42, **options: Any) -> StateGraph[Notes]:
    async def node(_state: Notes) -> Notes:
        result = await current_run().tool("pay", "pay", {"cents": cents}, **options)
        return {"notes": [str(result) if isinstance(result, Refused) else result]}

    return one_node(node)


def die(shop: Shop) -> None:
    with pytest.raises(Killed):
        Worker(shop.durable, lease_seconds=20).run_once()
    shop.expire_lease()
    shop.restart()


# --- told apart ----------------------------------------------------------------------------


@pytest.mark.promise("S-67")
@pytest.mark.parametrize("change", ["arguments", "tool", "request", "kind"])
def test_a_key_used_for_another_request_burns_no_attempt(
    shop: Shop, mode: str, change: str
) -> None:
    later = [False]
    hub = ToolHub()
    hub.add(lambda cents: cents, effect="read", name="look")
    hub.add(lambda cents: cents, effect="read", name="peek")

    async def node(_state: Notes) -> Notes:
        ctx, new = current_run(), later[0]
        if change == "arguments":
            await ctx.tool("key", "look", {"cents": 2 if new else 1})
        elif change == "tool":
            await ctx.tool("key", "peek" if new else "look", {"cents": 1})
        elif change == "request":
            await ctx.once("key", lambda: 1, request={"n": 2 if new else 1})
        elif new:
            await ctx.now("key")
        else:
            await ctx.random("key")
        return {"notes": [await ctx.ask("ask", "?")]}

    shop.deploy(one_node(node), mode, tools=hub)
    waits(shop.begin({"notes": []}))
    later[0] = True
    shop.restart()
    shop.decide(Decision.respond("mei", 1))
    error = failed(shop.work())
    assert error["type"] == "NonDeterminismError"
    said = {"arguments": ("1", "2"), "tool": ("look", "peek"), "request": ("1", "2")}
    for side in said.get(change, ("random", "now")):
        assert side in error["message"]
    assert shop.run.attempts == 0


def test_a_changed_prompt_is_noted_and_the_recorded_answer_is_used(shop: Shop, mode: str) -> None:
    prompt, asked = ["old"], []

    async def node(_state: Notes) -> Notes:
        reply = await current_run().llm("classify", [("user", prompt[0])], route="fast")
        await current_run().ask("ask", "?")
        return {"notes": [reply.content]}

    def model(messages: Any, _route: str) -> str:
        asked.append(messages[-1].content)
        return f"answer to {messages[-1].content}"

    shop.deploy(one_node(node), mode, models={"fast": model})
    waits(shop.begin({"notes": []}))
    prompt[0] = "new"
    assert succeeded(shop.answer("go"))["notes"] == ["answer to old"]
    assert asked == ["old"]
    assert shop.event("request_changed") == {
        "key": "classify",
        "recorded": "old",
        "requested": "new",
    }


@pytest.mark.promise("S-67")
def test_a_step_inserted_before_others_leaves_old_keys_matching(shop: Shop, mode: str) -> None:
    made: list[str] = []
    inserted = [False]

    async def node(_state: Notes) -> Notes:
        ctx = current_run()
        got = [await ctx.once("new", lambda: made.append("new"))] if inserted[0] else []
        got.append(await ctx.once("old", lambda: made.append("old")))
        return {"notes": [*got, await ctx.ask("ask", "?")]}

    shop.deploy(one_node(node), mode)
    waits(shop.begin({"notes": []}))
    inserted[0] = True
    succeeded(shop.answer("go"))
    assert made == ["old", "new"]


@pytest.mark.promise("S-08")
@pytest.mark.promise("S-09")
@pytest.mark.promise("S-50")
@pytest.mark.promise("S-74")
def test_what_is_uncertain_is_the_same_on_replay(any_shop: Shop, mode: str) -> None:
    shop, bank, asked, seen = any_shop, Bank(), [], []

    async def node(_state: Notes) -> Notes:
        ctx = current_run()
        seen.append(
            [
                (await ctx.llm("say", [HumanMessage("hi")])).content,
                await ctx.tool("pay", "pay", {"cents": 1}),
                await ctx.once("mine", lambda: (1, {"a": {2}})),
                await ctx.now("now"),
                await ctx.random("random"),
                await ctx.uuid("uuid"),
            ]
        )
        return {"notes": [await ctx.ask("ask", "?")]}

    shop.deploy(
        one_node(node),
        mode,
        tools=bank.hub,
        models={"default": lambda *_: asked.append(1) or "hello"},
    )
    waits(shop.begin({"notes": []}))
    succeeded(shop.answer("go"))
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert [type(v) for v in seen[0]] == [type(v) for v in seen[1]]
    assert (asked, bank.cents) == ([1], [1])
    assert shop.run.usage.saved_steps == 6


def test_a_lambda_has_no_name_to_show(shop: Shop):
    async def node(_state: Notes) -> Notes:
        return {"notes": [await current_run().once("key", lambda: 1)]}

    shop.deploy(one_node(node))
    succeeded(shop.begin({"notes": []}))
    assert shop.journal["key"].name == ""


@pytest.mark.promise("S-10")
def test_one_tool_in_two_roles_has_two_keys(shop: Shop, mode: str) -> None:
    bank = Bank()

    async def node(_state: Notes) -> Notes:
        ctx = current_run()
        return {"notes": [await ctx.tool(f"pay:{i}", "pay", {"cents": i}) for i in (1, 2)]}

    shop.deploy(one_node(node), mode, tools=bank.hub)
    assert succeeded(shop.begin({"notes": []}))["notes"] == [{"paid": 1}, {"paid": 2}]
    assert [p["key"] for p in bank.paid] == [f"{shop.run_id}:pay:1", f"{shop.run_id}:pay:2"]


# --- at least once, and effectively once -----------------------------------------------------


@pytest.mark.promise("S-40")
@pytest.mark.promise("S-41")
def test_a_crash_between_effect_and_record_calls_again_with_the_same_key(
    any_shop: Shop, mode: str
) -> None:
    shop, bank, looked = any_shop, Bank(), []

    async def node(_state: Notes) -> Notes:
        ctx = current_run()
        await ctx.once("look", lambda: looked.append(1))
        return {"notes": [await ctx.tool("pay", "pay", {"cents": 42})]}

    shop.deploy(one_node(node), mode, tools=bank.hub)
    shop.submit({"notes": []})
    bank.dies = True
    die(shop)
    assert shop.journal["pay"].state is StepState.INTENT
    assert succeeded(shop.work())["notes"] == [{"paid": 42}]
    assert looked == [1]
    assert bank.cents == [42, 42]
    assert {p["key"] for p in bank.paid} == {f"{shop.run_id}:pay"}
    assert [p["token"] for p in bank.paid] == sorted({p["token"] for p in bank.paid})
    assert shop.journal["pay"].attempts == 2


class Once(Bank):
    def __init__(self, **options: Any) -> None:
        super().__init__("once", **options)


ANSWERS = {
    "it happened": (Decision.approve("mei"), None, 1),
    "it happened, with this result": (Decision.respond("mei", {"paid": 42}), {"paid": 42}, 1),
    "it did not happen": (Decision.reject("mei"), {"paid": 42}, 2),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("asks", [False, True])
def test_a_call_that_can_not_be_repeated_is_asked_about_after_a_crash(
    shop: Shop, mode: str, answer: str, asks: bool
) -> None:
    bank = Once(asks=asks)
    shop.deploy(payer(), mode, tools=bank.hub)
    shop.submit({"notes": []})
    if asks:
        waits(shop.work())
        shop.decide(Decision.approve("mei"))
    bank.dies = True
    die(shop)
    waits(shop.work())
    question = shop.asked[0]
    assert question.kind == "outcome"
    assert question.payload["arguments"] == {"cents": 42}
    assert bank.cents == [42]
    decision, result, payments = ANSWERS[answer]
    shop.restart()
    shop.decide(decision)
    assert succeeded(shop.work())["notes"] == [result]
    assert len(bank.paid) == payments


def test_each_unsure_try_is_asked_about_by_itself(shop: Shop, mode: str) -> None:
    bank = Once()
    shop.deploy(payer(), mode, {"max_attempts": 10}, tools=bank.hub)
    shop.submit({"notes": []})
    bank.dies = True
    die(shop)
    waits(shop.work())
    shop.decide(Decision.reject("mei", "it did not happen"))
    bank.dies = True
    die(shop)
    waits(shop.work())
    assert bank.cents == [42, 42]
    assert succeeded(shop.approve())["notes"] == [None]
    assert bank.cents == [42, 42]


@pytest.mark.parametrize("found", [True, False])
def test_a_probe_decides_without_a_person(shop: Shop, mode: str, found: bool) -> None:
    probed = []

    def probe(arguments: dict[str, Any], info: Any) -> Any:
        probed.append((arguments, info.key))
        return {"paid": arguments["cents"]} if found else None

    bank = Once(probe=probe)
    shop.deploy(payer(), mode, tools=bank.hub)
    shop.submit({"notes": []})
    bank.dies = True
    die(shop)
    assert succeeded(shop.work())["notes"] == [{"paid": 42}]
    assert probed == [({"cents": 42}, "pay")]
    assert len(bank.paid) == (1 if found else 2)


@pytest.mark.parametrize("how", ["tool", "once"])
def test_a_retry_does_not_blindly_repeat_what_can_not_be_repeated(
    shop: Shop, mode: str, how: str
) -> None:
    bank = Once()
    again = Retry(attempts=3, first_seconds=0)

    async def node(_state: Notes) -> Notes:
        ctx = current_run()
        if how == "tool":
            return {"notes": [await ctx.tool("pay", "pay", {"cents": 1}, retry=again)]}
        call = bank.hub.spec("pay") and _failing(bank)
        return {"notes": [await ctx.once("pay", call, effect=Effect.ONCE, retry=again)]}

    shop.deploy(one_node(node), mode, tools=bank.hub)
    bank.fails = True
    waits(shop.begin({"notes": []}))
    assert [q.kind for q in shop.asked] == ["outcome"]
    assert bank.cents == []
    shop.restart()
    shop.decide(Decision.reject("mei", "it did not happen"))
    succeeded(shop.work())
    assert bank.cents == [1]


def _failing(bank: Bank) -> Any:
    def call() -> str:
        if bank.fails:
            bank.fails = False
            raise ConnectionError("away")
        bank.paid.append({"cents": 1})
        return "paid"

    return call


def test_a_function_of_ones_own_that_can_not_be_repeated_is_asked_about(
    shop: Shop, mode: str
) -> None:
    made, dies = [], [True]

    def send() -> str:
        made.append("sent")
        if dies.pop() if dies else False:
            raise Killed
        return "sent"

    async def node(_state: Notes) -> Notes:
        return {
            "notes": [
                await current_run().once("send", send, effect=Effect.ONCE, request={"to": "a"})
            ]
        }

    shop.deploy(one_node(node), mode)
    shop.submit({"notes": []})
    die(shop)
    waits(shop.work())
    assert shop.asked[0].kind == "outcome"
    shop.restart()
    shop.decide(Decision.respond("mei", "sent"))
    assert succeeded(shop.work())["notes"] == ["sent"]
    assert made == ["sent"]


# --- approvals -------------------------------------------------------------------------------


@pytest.mark.promise("S-30")
@pytest.mark.promise("S-31")
@pytest.mark.promise("S-33")
@pytest.mark.promise("S-66")
def test_an_approval_is_for_exactly_this_call_and_counts_once(any_shop: Shop, mode: str) -> None:
    shop, bank = any_shop, Bank(asks=True)
    shop.deploy(payer(), mode, tools=bank.hub)
    waits(shop.begin({"notes": []}))
    assert (bank.paid, shop.run.worker) == ([], None)
    question = shop.asked[0]
    assert (question.tool, question.payload) == ("local.pay", {"cents": 42})
    assert question.digest == digest_of({"cents": 42})
    shop.restart()
    waits(shop.work())  # no decision: nothing to do, and the tool is not called
    assert bank.paid == []
    first = shop.durable.decide(question.id, Decision.approve("mei"))
    again = shop.durable.decide(question.id, Decision.approve("mei"))
    assert first.approval_id == again.approval_id
    with pytest.raises(AlreadyDecided):
        shop.durable.decide(question.id, Decision.reject("max"))
    assert succeeded(shop.work())["notes"] == [{"paid": 42}]
    assert shop.journal["pay"].approval_id == first.approval_id
    shop.durable.decide(question.id, Decision.approve("mei"))
    assert succeeded(shop.work())["notes"] == [{"paid": 42}]
    assert bank.cents == [42]


def test_edited_arguments_are_what_the_tool_gets(shop: Shop, mode: str) -> None:
    bank = Bank(asks=True)
    shop.deploy(payer(), mode, tools=bank.hub)
    waits(shop.begin({"notes": []}))
    shop.restart()
    shop.decide(Decision.edit("mei", {"cents": 7}))
    assert succeeded(shop.work())["notes"] == [{"paid": 7}]
    assert bank.cents == [7]
    step = shop.journal["pay"]
    assert step.fingerprint == digest_of({"cents": 42})  # the request, as the code makes it
    assert "7" in step.request


def test_an_edit_does_not_get_past_a_rule(shop: Shop, mode: str) -> None:
    bank = Bank()
    rules = [
        Rule("ask", tool="pay"),
        Rule("deny", tool="pay", when={"argument": "cents", "more_than": 100}),
    ]
    shop.deploy(payer(), mode, tools=bank.hub, rules=rules)
    waits(shop.begin({"notes": []}))
    shop.decide(Decision.edit("mei", {"cents": 9999}))
    assert failed(shop.work())["type"] == "ToolDenied"
    assert bank.paid == []


@pytest.mark.promise("S-34")
def test_a_refusal_is_a_result_and_no_retry(shop: Shop, mode: str) -> None:
    bank = Bank(asks=True)
    shop.deploy(payer(), mode, tools=bank.hub)
    waits(shop.begin({"notes": []}))
    run = shop.reject("too much")
    assert succeeded(run)["notes"] == ["The call was refused by mei: too much"]
    assert (bank.paid, run.attempts) == ([], 0)


def test_a_decision_counts_also_if_its_rule_is_gone(shop: Shop, mode: str) -> None:
    bank = Bank()
    shop.deploy(payer(), mode, tools=bank.hub, rules=[Rule("ask", tool="pay")])
    waits(shop.begin({"notes": []}))
    shop.deploy(payer(), mode, tools=bank.hub)
    shop.decide(Decision.reject("mei", "no"))
    assert succeeded(shop.work())["notes"] == ["The call was refused by mei: no"]
    assert bank.paid == []


def test_a_deny_rule_ends_the_run(shop: Shop, mode: str) -> None:
    bank = Bank()
    shop.deploy(payer(), mode, tools=bank.hub, rules=[Rule("deny", tool="pay", name="no payments")])
    error = failed(shop.begin({"notes": []}))
    assert error["type"] == "ToolDenied"
    assert "no payments" in error["message"]
    assert (bank.paid, shop.run.attempts) == ([], 0)


@pytest.mark.promise("H-12")
@pytest.mark.parametrize("path", ["reject", "fail"])
def test_a_tool_question_expires_by_its_rule(shop: Shop, mode: str, path: str) -> None:
    bank = Bank()
    rule = Rule("ask", tool="pay", expires_in_seconds=60, on_expiry=path)  # type: ignore[arg-type]
    shop.deploy(payer(), mode, tools=bank.hub, rules=[rule])
    waits(shop.begin({"notes": []}))
    assert shop.asked[0].expires_at is not None
    shop.sql("UPDATE questions SET expires_at = :past", past="2000-01-01 00:00:00")
    shop.restart()
    run = shop.work()
    assert bank.paid == []
    if path == "fail":
        assert failed(run)["type"] == "QuestionExpired"
    else:
        assert succeeded(run)["notes"] == ["The call was not made: nobody approved it in time."]


@pytest.mark.promise("S-43")
def test_an_approval_serves_the_legitimate_repeat_after_a_crash(shop: Shop, mode: str) -> None:
    bank = Bank(asks=True)
    shop.deploy(payer(), mode, tools=bank.hub)
    waits(shop.begin({"notes": []}))
    shop.decide(Decision.approve("mei"))
    bank.dies = True
    die(shop)
    assert succeeded(shop.work())["notes"] == [{"paid": 42}]
    assert len({p["key"] for p in bank.paid}) == 1
    assert len(shop.durable.questions(run_id=shop.run_id, state=None)) == 1


# --- the edges -------------------------------------------------------------------------------


def test_a_failed_call_is_an_attempt_and_never_an_answer(shop: Shop, mode: str) -> None:
    bank = Bank()
    bank.fails = True
    shop.deploy(payer(), mode, tools=bank.hub)
    shop.submit({"notes": []})
    Worker(shop.durable).run_once()
    step = shop.journal["pay"]
    assert (step.state, step.value, step.attempts) == (StepState.FAILED, None, 1)
    assert (shop.run.status, shop.run.attempts) == (Status.QUEUED, 1)
    assert succeeded(shop.work())["notes"] == [{"paid": 42}]


def test_what_can_not_be_encoded_fails_at_its_step(shop: Shop, mode: str) -> None:
    async def node(_state: Notes) -> Notes:
        await current_run().once("open", lambda: {"files": [object()]})
        return {}

    shop.deploy(one_node(node), mode)
    error = failed(shop.begin({"notes": []}))
    assert error["type"] == "NotEncodable"
    assert "step 'open'" in error["message"]
    assert "object" in error["message"]


@pytest.mark.promise("S-65")
def test_model_and_tool_functions_of_ones_own(shop: Shop, mode: str) -> None:
    calls: list[Any] = []

    def call(server: str, tool: str, arguments: dict[str, Any], approval_id: str | None) -> Any:
        calls.append((server, tool, arguments, bool(approval_id)))
        return {"ok": True}

    hub = ToolHub()
    hub.plug(call, [ToolSpec("crm", "note", E.READ), ToolSpec("crm", "send", E.ONCE, asks=True)])

    def model(messages: Any, route: str) -> str:
        calls.append((route, messages[-1].content))
        return f"{route} answer"

    async def node(_state: Notes) -> Notes:
        ctx = current_run()
        first = await ctx.llm("a", "one", route="fast")
        await ctx.tool("note", "crm.note", {"text": first.content})
        await ctx.tool("send", "send", {"to": "x"})
        second = await ctx.llm("draft", "two", route="smart")
        return {"notes": [first.content, second.content]}

    shop.deploy(one_node(node), mode, tools=hub, models={"fast": model, "smart": model})
    waits(shop.begin({"notes": []}))
    assert succeeded(shop.approve())["notes"] == ["fast answer", "smart answer"]
    assert calls == [
        ("fast", "one"),
        ("crm", "note", {"text": "fast answer"}, False),
        ("crm", "send", {"to": "x"}, True),
        ("smart", "two"),
    ]


def test_a_tool_goes_by_each_of_its_names(shop: Shop, mode: str) -> None:
    """A replay that names the tool as models see it is the same call."""
    name = ["local.pay"]
    bank = Bank()

    async def node(_state: Notes) -> Notes:
        got = await current_run().tool("pay", name[0], {"cents": 1})
        await current_run().ask("ask", "?")
        return {"notes": [got]}

    shop.deploy(one_node(node), mode, tools=bank.hub)
    waits(shop.begin({"notes": []}))
    name[0] = "local__pay"
    assert succeeded(shop.answer("go"))["notes"] == [{"paid": 1}]
    assert bank.cents == [1]


def test_a_tool_error_reaches_the_code_each_time(shop: Shop, mode: str) -> None:
    hub, calls = ToolHub(), []

    @hub.tool(effect="read")
    def look(n: int) -> int:
        calls.append(n)
        raise ToolError("no such invoice")

    async def node(_state: Notes) -> Notes:
        try:
            got: Any = await current_run().tool("look", "look", {"n": 1})
        except ToolError as error:
            got = str(error)
        await current_run().ask("ask", "?")
        return {"notes": [got]}

    shop.deploy(one_node(node), mode, tools=hub)
    waits(shop.begin({"notes": []}))
    assert succeeded(shop.answer("go"))["notes"] == ["no such invoice"]


@pytest.mark.promise("S-08")
@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
def test_a_node_that_is_tried_again_waits_for_its_call_in_flight(
    shop: Shop, mode: str, effect: str
) -> None:
    hub, calls = ToolHub(), []

    @hub.tool(effect=effect)
    async def slow(cents: int, idempotency_key: str = "") -> int:
        calls.append(cents)
        await asyncio.sleep(0.3)
        return len(calls)

    async def node(_state: Notes) -> Notes:
        return {"notes": [await current_run().tool("slow", "slow", {"cents": 1})]}

    graph = StateGraph(Notes)
    again = RetryPolicy(max_attempts=9, initial_interval=0.01, retry_on=lambda _: True)
    graph.add_node("node", node, timeout=0.1, retry_policy=again)
    graph.add_edge(START, "node")
    shop.deploy(graph, mode, tools=hub)
    assert succeeded(shop.begin({"notes": []}))["notes"] == [1]
    assert calls == [1]


@pytest.mark.promise("S-08")
@pytest.mark.parametrize("times", [1, 2])
def test_a_call_that_was_given_up_is_waited_for_under_its_key(shop: Shop, times: int) -> None:
    calls: list[int] = []

    async def slow() -> int:
        calls.append(1)
        await asyncio.sleep(0.2)
        return len(calls)

    async def agent(ctx: Any, _given: Any) -> int:
        for _ in range(times):  # the second is given up as it waits for the first
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ctx.once("slow", slow), 0.05)
        value: int = await ctx.once("slow", slow)
        return value

    shop.deploy(agent)
    assert succeeded(shop.begin({})) == 1
