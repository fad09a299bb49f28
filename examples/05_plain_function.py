"""A plain async function is an agent too; and how it is unit-tested without any database."""

import asyncio
from datetime import timedelta
from typing import Any

from langgraph.errors import GraphBubbleUp

from langgraph_durable import Durable, Retry, RunContext, Status, Worker
from langgraph_durable.testing import FakeClock, MemoryJournal, context

durable = Durable("sqlite://")
tries = 0


def flaky_report() -> str:
    global tries
    tries += 1
    if tries < 3:
        raise ConnectionError("the report server is restarting")
    return "42 tickets"


@durable.agent("nightly.check")
async def check(ctx: RunContext, inp: dict[str, Any]) -> dict[str, Any]:
    """Time, ids and chance are steps: a replay sees the same."""
    started = await ctx.now("started")
    ticket = await ctx.uuid("ticket")
    retry = Retry(attempts=5, first_seconds=0.01, on=(ConnectionError,))
    report = await ctx.once("report", flaky_report, retry=retry)
    lucky = await ctx.random("sample") < inp["share"]
    await ctx.sleep("cool down", inp["sleep"])  # the run leaves its worker meanwhile
    return {"ticket": str(ticket), "at": started, "report": report, "sampled": lucky}


async def unit_test() -> None:
    """Run it on a journal in memory; then again, to see that the replay is the same."""
    journal, clock = MemoryJournal(), FakeClock()
    inp = {"share": 1.0, "sleep": 3600}
    try:
        await check(context(journal, clock=clock), inp)
    except GraphBubbleUp as pause:  # a worker would now settle the run as sleeping
        print("the first pass ended:", str(pause).partition(".")[0])
    made = tries
    clock.advance(3600)
    result = await check(context(journal, clock=clock, seed=7), inp)  # other chance, same answers
    again = await check(context(journal, clock=clock, seed=8), inp)
    assert result == again
    assert result["at"] == clock.now() - timedelta(hours=1)
    assert tries == made == 3  # twice in vain, once well, and never again


def main() -> None:
    asyncio.run(unit_test())
    run_id = durable.submit("nightly.check", {"share": 0.5, "sleep": 0.2})
    while not durable.get(run_id).status.is_final:
        Worker(durable).run_once()
    run = durable.get(run_id)
    print("the run:", run.status, run.output)
    print("its journal:", [step.key for step in durable.journal(run_id)])
    assert run.status is Status.SUCCEEDED
    assert run.output["report"] == "42 tickets"


if __name__ == "__main__":
    main()
