"""A write to a server that knows no keys: look first, then write; and the race that this leaves."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from shop import Shop, failed, succeeded, waits

from langgraph_durable import Decision, Durable, Effect, RunContext, ToolHub, Worker
from langgraph_durable.errors import BadInput
from langgraph_durable.testing import FakeClock, Ledger, RecordingTools, crash_everywhere
from langgraph_durable.tools import CallInfo, Found


class Killed(BaseException):
    """The worker dies here."""


def die(shop: Shop) -> None:
    with pytest.raises(Killed):
        Worker(shop.durable, lease_seconds=20).run_once()
    shop.expire_lease()
    shop.restart()


@pytest.mark.promise("S-42")
@pytest.mark.parametrize("how", ["tool", "once"])
def test_wherever_it_dies_the_probe_finds_the_write_and_nobody_is_asked(how: str) -> None:
    """A crash between the write and its record: it is found, and there is no second write."""
    ledger = Ledger()
    tools = RecordingTools(ledger)

    def is_written(*_: Any) -> Any:
        return Found() if ledger.effects() else None

    @tools.tool(effect="once", probe=is_written)
    def letter(to: str) -> None:
        """The post office knows no keys, and answers nothing."""

    async def agent(ctx: RunContext, inp: Any) -> Any:
        if how == "tool":
            return await ctx.tool("letter", "letter", {"to": "li"})
        return await ctx.once(
            "letter",
            lambda: ledger.act("letter", {"to": "li"}),
            effect=Effect.ONCE,
            probe=is_written,
        )

    report = crash_everywhere(agent, tools=tools, ledger=ledger)
    report.assert_ok()
    assert all(len(crash.after.shown) == 1 for crash in report.crashes)
    assert all(list(crash.after.questions) == [] for crash in report.crashes)


@pytest.mark.promise("S-42")
@pytest.mark.parametrize(
    ("found", "result", "writes"),
    [(None, "new", 2), ("old", "old", 1), (Found(None), None, 1), (Found(0), 0, 1), (0, 0, 1)],
    ids=["it did not happen", "its result", "without a result", "a falsy one", "falsy, plain"],
)
def test_what_a_probe_says_is_what_the_step_returns(
    shop: Shop, found: Any, result: Any, writes: int
) -> None:
    written: list[int] = []

    async def agent(ctx: RunContext, inp: Any) -> Any:
        def write() -> str:
            written.append(1)
            if len(written) == 1:
                raise Killed
            return "new"

        return [await ctx.once("write", write, effect=Effect.ONCE, probe=lambda: found)]

    shop.deploy(agent)
    shop.submit()
    die(shop)
    assert succeeded(shop.work()) == [result]
    assert len(written) == writes


@pytest.mark.promise("S-42")
def test_a_probe_that_breaks_is_tried_again_and_nothing_is_written_meanwhile(shop: Shop) -> None:
    written: list[int] = []
    probes = [ConnectionError("away"), ConnectionError("away"), "found"]

    def probe(arguments: Any, info: CallInfo) -> Any:
        answer = probes.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    hub = ToolHub()

    @hub.tool(effect="once", probe=probe)
    def write() -> str:
        written.append(1)
        raise Killed

    async def agent(ctx: RunContext, inp: Any) -> Any:
        return await ctx.tool("write", "write")

    shop.deploy(agent, agent={"max_attempts": 5}, tools=hub)
    shop.submit()
    die(shop)
    assert succeeded(shop.work()) == "found"
    assert written == [1]
    assert probes == []


def test_a_probe_for_what_may_be_repeated_is_refused(shop: Shop) -> None:
    async def agent(ctx: RunContext, inp: Any) -> Any:
        return await ctx.once("look", lambda: 1, probe=lambda: None)

    shop.deploy(agent)
    assert "a probe is for effect='once'" in failed(shop.begin())["message"]
    with pytest.raises(BadInput, match="a probe is for effect='once'"):
        ToolHub().add(lambda: 1, name="look", effect="read", probe=lambda a, i: None)


@pytest.mark.promise("S-42")
def test_without_a_probe_a_person_is_asked(shop: Shop) -> None:
    written: list[int] = []

    async def agent(ctx: RunContext, inp: Any) -> Any:
        def write() -> None:
            written.append(1)
            raise Killed

        return await ctx.once("write", write, effect=Effect.ONCE)

    shop.deploy(agent)
    shop.submit()
    die(shop)
    waits(shop.work())
    shop.decide(Decision.approve("mei"))
    succeeded(shop.work())
    assert written == [1]


@pytest.mark.promise("S-42")
@pytest.mark.promise("S-64")
@pytest.mark.parametrize(("keeps_keys", "writes"), [(False, 2), (True, 1)])
def test_the_race_between_looking_and_writing(
    sqlite_url: str, keeps_keys: bool, writes: int
) -> None:
    """Two workers: the first stands still on its way to the server, and the second looks.

    A probe can't see what has not arrived yet: the letter is sent twice. Only the server can
    close this gap, by keeping keys; then the second write is answered with the first.
    """
    letters: dict[str, str] = {}
    stands_still, goes_on = threading.Event(), threading.Event()
    clock = FakeClock()

    def app() -> Durable:
        hub = ToolHub()

        def probe(arguments: Any, info: CallInfo) -> Any:
            return next(iter(letters.values()), None)

        def post(to: str, idempotency_key: str, fencing_token: int) -> str:
            if fencing_token == 1:  # the first worker
                stands_still.set()
                assert goes_on.wait(30)
            known = idempotency_key if keeps_keys else f"letter {len(letters)}"
            return letters.setdefault(known, f"posted by {fencing_token}")

        options = {} if keeps_keys else {"probe": probe}
        hub.add(post, effect="idempotent" if keeps_keys else "once", **options)
        durable = Durable(sqlite_url, tools=hub, clock=clock)

        @durable.agent("writes")
        async def writes(ctx: RunContext, inp: Any) -> Any:
            return await ctx.tool("post", "post", {"to": "li"})

        return durable

    first, second = app(), app()
    run_id = first.submit("writes")
    sleeper = threading.Thread(target=Worker(first, name="a").run_once)
    sleeper.start()
    assert stands_still.wait(30)
    clock.advance(61)  # its lease is over
    Worker(second, name="b").run_once()
    assert second.get(run_id).output == "posted by 2"  # it looked, found nothing, and wrote
    goes_on.set()
    sleeper.join(30)
    assert len(letters) == writes
    assert second.get(run_id).output == "posted by 2"  # the late record was refused
    for durable in (first, second):
        durable.close()
