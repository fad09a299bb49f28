"""Who may let a call through, for how long, and what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from shop import Shop, failed, succeeded, waits

from langgraph_durable import (
    Budget,
    Decision,
    Message,
    Price,
    Question,
    Refused,
    Rule,
    RunContext,
    Status,
    ToolHub,
    Worker,
)
from langgraph_durable.errors import (
    AlreadyDecided,
    BadInput,
    Forbidden,
    NotApproved,
    NotFound,
    NotWaiting,
)
from langgraph_durable.runs import QuestionState
from langgraph_durable.testing.fakes import FakeClock
from langgraph_durable.tools import Approval, CallInfo, digest

ASK = Rule("ask", tool="pay", name="payments")
SMALL = {"argument": "cents", "at_most": 5000}


class Till:
    """A shop whose one tool pays, and what it paid."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.paid: list[tuple[int, str]] = []
        self.clock = FakeClock()
        self.told: list[Message] = []

    def open(self, *rules: Rule, **options: Any) -> None:
        """Deploy an agent that pays what it is asked to: one sum, or several one by one."""
        hub = ToolHub()

        @hub.tool(effect="idempotent")
        def pay(cents: int, idempotency_key: str) -> str:
            self.paid.append((cents, idempotency_key))
            return f"paid {cents}"

        async def agent(ctx: RunContext, given: Any) -> Any:
            sums = given if isinstance(given, list) else [given]
            done = [await ctx.tool(f"pay:{i}", "pay", {"cents": c}) for i, c in enumerate(sums)]
            return [str(one) for one in done]

        known = {"tools": hub, "rules": rules, "clock": self.clock, "notify": [self.told.append]}
        self.shop.deploy(agent, **(known | options))

    def begin(self, given: Any, tenant: str = "t") -> str:
        self.shop.begin(given, tenant=tenant)
        return self.shop.run_id

    @property
    def question(self) -> Question:
        (found,) = self.shop.asked
        return found

    def decide(self, decision: Decision, **more: Any) -> Question:
        self.clock.advance(0.001)
        return self.shop.durable.decide(self.question.id, decision, **more)

    def topics(self) -> list[str]:
        Worker(self.shop.durable).run_until_idle()
        return [message.topic for message in self.told]


@pytest.fixture
def till(any_shop: Shop) -> Iterator[Till]:
    """A till on each database."""
    return Till(any_shop)


# --- four eyes -------------------------------------------------------------------------


@pytest.mark.promise("S-30")
def test_two_different_people_must_approve_where_a_rule_says_so(till: Till) -> None:
    till.open(Rule("ask", tool="pay", approvals=2))
    till.begin(42)
    first = till.decide(Decision.approve("mei"))
    assert (first.state, first.approved_by) == (QuestionState.OPEN, ("mei",))
    for same in ("mei", "Mei ", "MEI"):
        assert till.decide(Decision.approve(same)).approved_by == ("mei",)
    waits(till.shop.work())
    assert till.shop.events.count("question_approved") == 1
    second = till.decide(Decision.approve("bo"))
    assert (second.state, second.approved_by) == (QuestionState.DECIDED, ("mei", "bo"))
    assert succeeded(till.shop.work()) == ["paid 42"]
    assert len(till.paid) == 1
    again = till.shop.durable.decide(second.id, Decision.approve("mei"))
    assert again.state is QuestionState.DECIDED


def test_a_refusal_by_either_decides(till: Till) -> None:
    till.open(Rule("ask", tool="pay", approvals=2))
    till.begin(42)
    till.decide(Decision.approve("mei"))
    till.decide(Decision.reject("bo", "too much"))
    (said,) = succeeded(till.shop.work())
    assert "too much" in said
    assert till.paid == []


def test_two_people_who_say_different_things_have_not_agreed(till: Till) -> None:
    till.open(Rule("ask", tool="pay", approvals=2))
    till.begin(42)
    till.decide(Decision.approve("mei"))
    edited = till.decide(Decision.edit("bo", {"cents": 40}))
    assert edited.state is QuestionState.OPEN
    assert till.decide(Decision.edit("mei", {"cents": 40})).state is QuestionState.DECIDED
    assert succeeded(till.shop.work()) == ["paid 40"]


# --- time passes -----------------------------------------------------------------------


@pytest.mark.promise("H-12")
def test_reminded_once_an_interval_then_another_role_may_decide(till: Till) -> None:
    till.open(
        Rule(
            "ask",
            tool="pay",
            approver_role="clerk",
            remind_after_seconds=600,
            escalate_after_seconds=3600,
            escalate_to="boss",
        )
    )
    till.begin(42)
    other = till.shop.restart()
    till.clock.advance(601)
    assert [other.store.sweep(), other.store.sweep()] == [1, 0]
    till.clock.advance(5 * 600)  # several intervals without a worker: one reminder
    assert other.store.sweep() == 2
    assert other.store.sweep() == 0
    assert till.shop.events.count("question_reminded") == 2
    assert till.shop.event("question_escalated")["role"] == "boss"
    with pytest.raises(Forbidden):
        till.decide(Decision.approve("mei"), roles={"clerk"})
    till.decide(Decision.approve("ada"), roles={"boss"})
    assert till.topics() == [
        "question.asked",
        "question.reminded",
        "question.escalated",
        "question.reminded",
        "run.ended",
    ]
    assert succeeded(till.shop.run) == ["paid 42"]
    till.clock.advance(9000)
    assert till.shop.durable.store.sweep() == 0  # a question that is answered is left alone


def test_a_question_is_handed_to_a_role_or_a_person_by_who_may_decide_it(till: Till) -> None:
    till.open(ASK)
    till.begin(42)
    durable, asked = till.shop.durable, till.question
    with pytest.raises(Forbidden):
        durable.delegate(asked.id, by="bot", role="agent", roles={"agent"})
    with pytest.raises(BadInput):
        durable.delegate(asked.id, by="mei")
    with pytest.raises(NotFound):
        durable.delegate(asked.id, by="eve", person="eve", tenant="other")
    durable.delegate(asked.id, by="mei", role="finance", roles={"supervisor"})
    with pytest.raises(Forbidden):
        till.decide(Decision.approve("mei"), roles={"supervisor"})
    handed = durable.delegate(asked.id, by="fin", person="bo", roles={"finance"})
    assert (handed.role, handed.person) == ("finance", "bo")
    with pytest.raises(Forbidden):
        till.decide(Decision.approve("fin"), roles={"finance"})
    till.decide(Decision.approve("bo"), roles={"reader"})
    assert till.shop.events.count("question_delegated") == 2
    with pytest.raises(NotWaiting):
        durable.delegate(asked.id, by="mei", role="boss")


# --- rules that decisions carry --------------------------------------------------------


@pytest.mark.promise("S-35")
def test_a_decision_brings_a_rule_that_holds_until_its_time_or_its_end(till: Till) -> None:
    till.open(ASK)
    till.begin(4200)
    friday = till.clock.now() + timedelta(days=3)
    rule = Rule("allow", tool="pay", when=SMALL)
    till.decide(Decision.approve("mei", rules=[rule], until=friday))
    assert succeeded(till.shop.work()) == ["paid 4200"]
    (made,) = till.shop.durable.rules("t")
    assert (made.made_by, made.expires_at, made.is_live) == ("mei", friday, True)
    assert made.data["tenant"] == "t"
    assert till.shop.event("rule_made")["rule_id"] == made.id
    till.begin(5000)
    assert succeeded(till.shop.run) == ["paid 5000"]
    assert till.shop.journal["pay:0"].approval_id == f"rule:{made.id}"
    till.begin(5001)
    waits(till.shop.run)
    till.begin(10, tenant="other")
    waits(till.shop.run)
    assert till.shop.durable.rules("other") == []
    with pytest.raises(NotFound):
        till.shop.durable.revoke_rule(made.id, by="eve", tenant="other")
    till.clock.advance(3 * 86_400 + 1)
    till.begin(20)
    waits(till.shop.run)
    assert not till.shop.durable.rules("t")[0].is_live


@pytest.mark.promise("S-35")
def test_a_revoked_rule_allows_nothing_more(till: Till) -> None:
    till.open(ASK)
    till.begin(1)
    till.decide(Decision.approve("mei", rules=[Rule("allow", tool="pay", when=SMALL)]))
    till.shop.work()
    (made,) = till.shop.durable.rules("t")
    first = till.shop.durable.revoke_rule(made.id, by="ada", tenant="t")
    assert till.shop.durable.revoke_rule(made.id, by="bo", tenant="t") == first
    assert (first.revoked_by, first.is_live) == ("ada", False)
    till.begin(2)
    waits(till.shop.run)


def test_a_rule_of_a_decision_is_about_its_tool_and_tenant_only(till: Till) -> None:
    till.open(ASK)
    till.begin(1)
    for rule in (Rule("allow", tool="other"), Rule("allow", tool="pay", tenant="other")):
        with pytest.raises(BadInput):
            till.decide(Decision.approve("mei", rules=[rule]))
    with pytest.raises(BadInput):
        till.decide(Decision.reject("mei", rules=[Rule("allow", tool="pay")]))
    assert till.question.state is QuestionState.OPEN
    till.decide(Decision.approve("mei", rules=[Rule("allow")]))
    (made,) = till.shop.durable.rules()
    assert made.data == {"verdict": "allow", "tenant": "t", "tool": "local.pay"}


def test_the_same_approval_with_a_rule_is_another_decision(till: Till) -> None:
    till.open(ASK)
    till.begin(1)
    asked = till.decide(Decision.approve("mei"))
    with pytest.raises(AlreadyDecided):
        till.shop.durable.decide(
            asked.id, Decision.approve("bo", rules=[Rule("allow", tool="pay")])
        )
    assert till.shop.durable.rules() == []


def test_a_rule_answers_only_what_its_maker_could_have_answered(till: Till) -> None:
    """A supervisor's "allow from now on" is no yes of finance, nor of two people."""
    till.open(
        ASK,
        Rule("ask", tool="pay", when={"argument": "cents", "more_than": 1000}, approver_role="finance"),
    )  # fmt: skip
    till.begin(1)
    till.decide(
        Decision.approve("mei", rules=[Rule("allow", tool="pay", agent="agent", server="local")])
    )
    till.shop.work()
    till.begin(2)
    assert succeeded(till.shop.run) == ["paid 2"]
    till.begin(2000)
    waits(till.shop.run)


@pytest.mark.promise("S-70")
def test_an_ask_that_is_not_overridable_is_never_skipped(till: Till) -> None:
    till.open(Rule("ask", tool="pay", overridable=False))
    till.begin(1)
    till.decide(Decision.approve("mei", rules=[Rule("allow", tool="pay")]))
    till.shop.work()
    till.begin(2)
    waits(till.shop.run)


@pytest.mark.promise("S-34")
def test_what_was_refused_before_is_shown_so_and_no_rule_lets_it_through(till: Till) -> None:
    till.open(ASK)
    till.begin(42)
    till.decide(Decision.reject("mei", "paid by hand"))
    refusal = till.shop.run_id
    till.shop.work()
    till.begin(7)
    till.decide(Decision.approve("bo", rules=[Rule("allow", tool="pay", when=SMALL)]))
    till.shop.work()
    till.begin(8)
    assert succeeded(till.shop.run) == ["paid 8"]
    till.begin(42)
    waits(till.shop.run)
    before = till.question.refused_before
    assert before is not None
    assert (before.by, before.reason, before.run_id) == ("mei", "paid by hand", refusal)
    till.begin(42, tenant="other")
    assert till.question.refused_before is None


@pytest.mark.promise("S-66")
def test_what_was_asked_stays_asked_when_a_rule_is_made_meanwhile(till: Till) -> None:
    till.open(ASK)
    waiting = till.begin(10)
    till.begin(11)
    till.decide(Decision.approve("mei", rules=[Rule("allow", tool="pay", when=SMALL)]))
    till.shop.work()
    till.shop.run_id = waiting
    till.shop.sql("UPDATE runs SET status = 'queued' WHERE id = :id", id=waiting)
    waits(till.shop.work())
    assert (10, f"{waiting}:pay:0") not in till.paid
    assert till.shop.events.count("question_asked") == 1


def test_an_edit_upwards_is_asked_of_who_may_allow_that_much(till: Till) -> None:
    large = {"argument": "cents", "more_than": 1000}
    till.open(ASK, Rule("ask", tool="pay", when=large, approver_role="finance"))
    till.begin(10)
    till.decide(Decision.edit("mei", {"cents": 5000}), roles={"supervisor"})
    waits(till.shop.work())
    assert (till.question.role, till.question.payload) == ("finance", {"cents": 5000})
    till.decide(Decision.approve("fin"), roles={"finance"})
    assert succeeded(till.shop.work()) == ["paid 5000"]


# --- approvals -------------------------------------------------------------------------


@pytest.mark.promise("S-38")
@pytest.mark.promise("S-31")
def test_all_questions_of_a_run_are_decided_together_and_each_has_its_own_approval(
    till: Till,
) -> None:
    hub = ToolHub()
    seen: list[str | None] = []

    @hub.tool(effect="idempotent", asks=True)
    def pay(cents: int, idempotency_key: str) -> str:
        seen.append(idempotency_key)
        return f"paid {cents}"

    async def agent(ctx: RunContext, _given: Any) -> Any:
        calls = [ctx.tool(f"pay:{i}", "pay", {"cents": 5}) for i in range(3)]
        return [str(one) for one in await asyncio.gather(*calls)]

    till.shop.deploy(agent, tools=hub)
    waits(till.shop.begin())
    decided = till.shop.durable.decide_all(till.shop.run_id, Decision.approve("mei"))
    approvals = {question.approval_id for question in decided}
    assert len(approvals) == 3
    assert {step.approval_id for step in till.shop.journal.values()} == approvals
    assert succeeded(till.shop.work()) == ["paid 5"] * 3
    assert len(set(seen)) == 3
    # what was approved under one key is no approval under another
    used = till.shop.journal["pay:0"].approval_id or ""
    arguments, run_id = {"cents": 5}, till.shop.run_id
    approval = Approval(used, "default", run_id, "pay:0", "local.pay", digest(arguments))
    for key in ("pay:1", "pay:9"):
        info = CallInfo(run_id, "default", "agent", key, approval=approval)
        with pytest.raises(NotApproved, match=f"{used} was given for another step"):
            asyncio.run(hub.call("pay", arguments, info))
    assert len(seen) == 3


# --- budgets ---------------------------------------------------------------------------


def talker(till: Till, calls: int = 3, **options: Any) -> None:
    async def agent(ctx: RunContext, _given: Any) -> Any:
        try:
            return [(await ctx.llm(f"say:{i}", "hello")).content for i in range(calls)]
        except Exception:
            return "swallowed"

    from langchain_core.messages import AIMessage

    def model(_messages: Any, _route: str) -> AIMessage:
        usage = {"input_tokens": 60, "output_tokens": 40, "total_tokens": 100}
        return AIMessage("hi", usage_metadata=usage)

    agent_options = options.pop("agent", {})
    till.shop.deploy(agent, models={"default": model}, agent=agent_options, **options)


def test_a_run_over_its_budget_asks_and_goes_on_with_as_much_again(till: Till) -> None:
    talker(till, 3, agent={"budget": Budget(tokens=100)})
    waits(till.shop.begin())
    assert (till.question.kind, till.question.payload["used"]) == ("budget", 100.0)
    till.shop.approve()
    waits(till.shop.run)
    assert till.question.payload["raised"] == 1
    with pytest.raises(BadInput):
        till.decide(Decision.respond("mei", -5))
    till.decide(Decision.respond("mei", 500))
    assert succeeded(till.shop.work()) == ["hi", "hi", "hi"]


def test_a_budget_that_is_not_raised_ends_the_run_with_its_reason(till: Till) -> None:
    talker(till, 3, agent={"budget": Budget(model_calls=1)})
    waits(till.shop.begin())
    error = failed(till.shop.reject())
    assert (error["reason"], error["type"]) == ("budget", "OverBudget")
    till.shop.durable.retry(till.shop.run_id)
    waits(till.shop.work())  # an operator's retry asks again
    till.decide(Decision.respond("mei", 10))
    assert succeeded(till.shop.work()) == ["hi", "hi", "hi"]


def test_a_tenants_budget_counts_all_its_runs_and_one_answer_is_for_all(till: Till) -> None:
    budgets = {"t": Budget(cost=0.0003, window_seconds=3600)}
    # an answer costs 0.00014, so the third one goes over
    talker(till, 2, budgets=budgets, prices={"default": Price(input=1.0, output=2.0)})
    succeeded(till.shop.begin(tenant="other"))
    succeeded(till.shop.begin(tenant="t"))
    mine = [till.shop.durable.submit("agent", tenant="t") for _ in range(2)]
    durable = till.shop.durable
    till.shop.run_id = mine[0]
    waits(till.shop.work())
    assert [durable.get(one).status for one in mine] == [Status.WAITING_HUMAN] * 2
    first, second = durable.questions(tenant="t")
    durable.decide(first.id, Decision.approve("mei"))
    assert durable.question(second.id).state is QuestionState.CLOSED
    succeeded(till.shop.work())
    till.shop.run_id = mine[1]
    waits(till.shop.run)  # it went on, and met the raised budget
    assert till.question.payload["raised"] == 1
    assert list(till.shop.journal) == ["say:0"]


@pytest.mark.promise("S-78")
@pytest.mark.promise("S-79")
def test_agentscopes_confirmation_is_a_decision(till: Till) -> None:
    till.open(ASK)
    run_id = till.begin([1, 2])
    durable = till.shop.durable
    (parked,) = durable.parked("t")
    assert (parked.reply_id, parked.tool_call_id, parked.state) == (run_id, "pay:0", "asking")
    event = {
        "type": "USER_CONFIRM_RESULT",
        "reply_id": run_id,
        "confirm_results": [
            {
                "confirmed": True,
                "tool_call": {"id": "pay:0", "name": "pay", "input": '{"cents": 1}'},
                "rules": [{"tool_name": "pay", "behavior": "allow"}],
            }
        ],
    }
    (decided,) = durable.confirm(event, by="mei", tenant="t")
    assert decided.decision is not None
    assert decided.decision.choice == "approve"
    assert succeeded(till.shop.work()) == ["paid 1", "paid 2"]
    assert durable.rules("t")[0].made_by == "mei"
    with pytest.raises(NotFound):
        durable.confirm(event, by="eve", tenant="other")
    for broken in ({}, {"type": "X"}, event | {"confirm_results": [{"confirmed": "yes"}]}):
        with pytest.raises(BadInput):
            durable.confirm(broken, by="mei")


@pytest.mark.promise("S-79")
def test_agentscopes_other_input_is_an_edit_and_a_no_is_a_refusal(till: Till) -> None:
    till.open(ASK)
    till.begin([1, 2])

    def event(key: str, confirmed: bool, cents: int) -> dict[str, Any]:
        call = {"id": key, "input": f'{{"cents": {cents}}}'}
        results = [{"confirmed": confirmed, "tool_call": call}]
        return {
            "type": "USER_CONFIRM_RESULT",
            "reply_id": till.shop.run_id,
            "confirm_results": results,
        }

    till.shop.durable.confirm(event("pay:0", True, 3), by="mei")
    waits(till.shop.work())
    till.shop.durable.confirm(event("pay:1", False, 2), by="mei")
    first, second = succeeded(till.shop.work())
    assert first == "paid 3"
    assert second == str(Refused("", "mei"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema": {"type": "strin"}},
        {"schema": {"type": object}},
        {"choices": ("yes",)},
        {"choices": ()},
    ],
)
def test_a_question_that_nobody_could_answer_is_refused_where_it_is_put(
    shop: Shop, wrong: dict[str, Any]
) -> None:
    async def agent(ctx: Any, _given: Any) -> Any:
        return await ctx.ask("ask", "?", **wrong)

    shop.deploy(agent)
    assert failed(shop.begin({}))["type"] == "BadInput"


def test_a_default_that_can_not_be_kept_is_refused_where_it_is_given(shop: Shop) -> None:
    async def agent(ctx: Any, _given: Any) -> Any:
        return await ctx.ask("ask", "?", on_expiry="default", default=object())

    shop.deploy(agent)
    assert failed(shop.begin({}))["type"] == "NotEncodable"


class Odd(Exception):
    key = b"bytes"

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def _odd(_ctx: Any, _given: Any) -> None:
    raise Odd


async def _awaits_cancelled(_ctx: Any, _given: Any) -> None:
    one = asyncio.create_task(asyncio.sleep(9))
    one.cancel()
    await one


async def _odd_role(ctx: Any, _given: Any) -> None:
    await ctx.ask("ask", "?", role="\ud83d")


@pytest.mark.promise("S-11")
@pytest.mark.parametrize(
    ("agent", "said"),
    [(_odd, "Odd"), (_awaits_cancelled, "DurableError"), (_odd_role, "BadInput")],
)
def test_whatever_ends_a_run_can_be_stored(shop: Shop, agent: Any, said: str) -> None:
    """Else it would stay with its worker till the lease is over, and end as a crash loop."""
    shop.deploy(agent, agent={"max_attempts": 1})
    assert failed(shop.begin({}))["type"] == said
