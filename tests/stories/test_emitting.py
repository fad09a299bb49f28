"""Messages that steps send: one commit with the record, delivered at least once, in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from langgraph_durable import Durable, Retry, RunContext, Status, ToolHub, Worker
from langgraph_durable.errors import BadInput
from langgraph_durable.relay import Message
from langgraph_durable.testing import RecordingTools, crash_everywhere


class Inbox:
    """A receiver that remembers ids, and fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.deliveries: list[Message] = []

    def __call__(self, message: Message) -> None:
        self.deliveries.append(message)
        if self.failures:
            self.failures -= 1
            raise OSError("the receiver is away")

    @property
    def seen(self) -> list[str]:
        """Each message once, as a receiver that knows ids sees them."""
        return list(dict.fromkeys(message.id for message in self.deliveries))


def desk(url: str, inbox: Inbox) -> Durable:
    hub = ToolHub()

    @hub.tool(effect="idempotent")
    def refund(cents: int, idempotency_key: str) -> dict[str, Any]:
        return {"refunded": cents, "key": idempotency_key}

    durable = Durable(url, tools=hub, outbox={"refund.*": inbox, "mail": inbox})

    @durable.agent("pay", retry=Retry(first_seconds=0))
    async def pay(ctx: RunContext, inp: dict[str, Any]) -> str:
        await ctx.tool(
            "refund",
            "refund",
            {"cents": 4200},
            emits=lambda result: ("refund.paid", {"cents": result["refunded"]}),
        )
        await ctx.emit("thanks", "mail", {"to": "c_42"})
        if inp.get("fails") and ctx.attempt == 1:
            raise OSError("once")
        return "ok"

    return durable


@pytest.mark.promise("S-44")
@pytest.mark.promise("S-80")
def test_a_refund_and_its_message_are_recorded_together_and_seen_once(database_url: str) -> None:
    inbox = Inbox(failures=1)
    durable = desk(database_url, inbox)
    run_id = durable.submit("pay", {"fails": True})
    Worker(durable).run_until_idle()
    assert durable.get(run_id).status is Status.SUCCEEDED
    durable.relay.deliver()
    kept = durable.store.list_messages(run_id)
    assert [(m.topic, m.id) for m in kept] == [
        ("refund.paid", f"{run_id}:refund"),
        ("mail", f"{run_id}:thanks"),
    ]
    assert inbox.deliveries[0].payload == {"cents": 4200}
    durable.close()


@pytest.mark.promise("S-44")
def test_a_failed_delivery_holds_back_the_later_ones_of_its_run(database_url: str) -> None:
    inbox = Inbox(failures=1)
    durable = desk(database_url, inbox)
    run_id = durable.submit("pay", {})
    Worker(durable).run_once()
    durable.relay.deliver()
    assert inbox.seen == [f"{run_id}:refund"]  # it failed; its successor waits for it
    durable.close()


def test_a_message_that_nobody_takes_is_refused_where_it_is_sent(database_url: str) -> None:
    durable = Durable(database_url)

    @durable.agent("lost")
    async def lost(ctx: RunContext, inp: object) -> None:
        await ctx.emit("note", "nowhere", {})

    run_id = durable.submit("lost")
    Worker(durable).run_once()
    run = durable.get(run_id)
    assert run.status is Status.FAILED
    assert run.error is not None
    assert "no sink takes the topic 'nowhere'" in run.error["message"]
    durable.close()


def test_sync_code_emits_as_well(sqlite_url: str) -> None:
    inbox = Inbox()
    durable = Durable(sqlite_url, outbox={"mail": inbox})

    @durable.agent("thank")
    async def thank(ctx: RunContext, _given: Any) -> None:
        await asyncio.to_thread(lambda: ctx.blocking.emit("thanks", "mail", {"to": "c_42"}))

    run_id = durable.submit("thank")
    Worker(durable).run_until_idle()
    durable.relay.deliver()
    assert inbox.seen == [f"{run_id}:thanks"]


@pytest.mark.promise("S-80")
def test_refund_write_back_and_e_mail_each_carry_a_key_wherever_the_worker_dies() -> None:
    """Three effects of one run, three keys that tell their repeats apart: each takes place once."""
    tools = RecordingTools()

    @tools.tool(effect="idempotent")
    def refund(cents: int, idempotency_key: str) -> dict[str, int]:
        return {"refunded": cents}

    @tools.tool(effect="idempotent", server="crm")
    def write_back(note: str, idempotency_key: str) -> str:
        return "noted"

    @tools.tool(effect="idempotent", server="mail", key_argument="message_id")
    def send(to: str, message_id: str) -> str:
        return "sent"

    async def agent(ctx: RunContext, inp: Any) -> str:
        await ctx.tool("refund", "refund", {"cents": 4200})
        await ctx.tool("note", "crm.write_back", {"note": "refunded 4200"})
        await ctx.tool("thanks", "mail.send", {"to": "c_42"})
        return "ok"

    report = crash_everywhere(agent, tools=tools)
    report.assert_ok()
    assert report.repeated["idempotent"] == 6  # before and after the effect of each
    for crash in report.crashes:
        keys = {(call.tool, call.idempotency_key) for call in crash.after.calls}
        assert keys == {
            ("local.refund", f"{crash.after.run.id}:refund"),
            ("crm.write_back", f"{crash.after.run.id}:note"),
            ("mail.send", f"{crash.after.run.id}:thanks"),
        }
        assert len(crash.after.shown) == 3


@pytest.mark.parametrize(
    "topic", ["run.x", "question.asked", "a b", "%", "*x", "", "r*", "ques*", "*"]
)
def test_a_topic_that_could_be_mistaken_is_refused(topic: str) -> None:
    with pytest.raises(BadInput, match="outbox topic"):
        Durable("sqlite://", outbox={topic: Inbox()})
