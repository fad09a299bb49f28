"""Three writes, one of which fails for good: what was done is undone, the last first."""

from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

from langgraph_durable import Compensation, Decision, Durable, ToolHub, Worker, current_run
from langgraph_durable.errors import ToolError
from langgraph_durable.testing import RecordingTools


def tools() -> ToolHub:
    """Register what undoes before what it undoes. `ledger` knows the keys of repeats."""
    hub = RecordingTools()

    @hub.tool(effect="idempotent")
    def lower_quota(customer: str, to: int, idempotency_key: str) -> str:
        return "lowered"

    @hub.tool(effect="idempotent")
    def restore(customer: str, plan: str, idempotency_key: str) -> str:
        return "restored"

    # a tool may say for all its calls what undoes one: by its result, and its arguments
    undo = Compensation("lower_quota", lambda old, made: {"customer": made["customer"], "to": old})

    @hub.tool(effect="idempotent", compensate=undo)
    def raise_quota(customer: str, to: int, idempotency_key: str) -> int:
        return 10  # what it was before

    @hub.tool(effect="idempotent")
    def update(customer: str, plan: str, idempotency_key: str) -> dict[str, str]:
        if customer == "nobody":
            raise ToolError(f"the CRM has no {customer}")
        return {"before": "free"}

    @hub.tool(effect="idempotent")
    def send_mail(customer: str, text: str, idempotency_key: str) -> str:
        raise ToolError(f"{customer} has no address")

    return hub


class State(TypedDict, total=False):
    customer: str
    sent: Any


async def upgrade(state: State) -> State:
    """An e-mail can't be called back, so it comes last: nothing behind it can fail."""
    ctx, customer = current_run(), state["customer"]
    await ctx.tool("quota", "raise_quota", {"customer": customer, "to": 100})
    # or each call says it; the function is asked at once, and what it returns is stored
    undo = Compensation("restore", lambda was: {"customer": customer, "plan": was["before"]})
    await ctx.tool("crm", "update", {"customer": customer, "plan": "pro"}, compensate=undo)
    return {"sent": await ctx.tool("mail", "send_mail", {"customer": customer, "text": "Hello"})}


GRAPH = StateGraph(State).add_node(upgrade).add_edge(START, "upgrade").add_edge("upgrade", END)


def main() -> None:
    durable = Durable("sqlite://", tools=tools())
    durable.graph("upgrade", GRAPH, mode="steps")
    for customer in ("nobody", "mei"):
        run_id = durable.submit("upgrade", {"customer": customer})
        Worker(durable).run_until_idle()
        run = durable.get(run_id)
        print(run.status.value, "because", run.error and run.error["message"])
        for key, told in durable.undone(durable.journal(run_id)).items():
            print(f"  {key}: {told}")
        (review,) = run.questions  # stays in the inbox; its answer takes note, and wakes nothing
        durable.decide(review.id, Decision.approve("tom", "told the customer"))
    keys = [step.key for step in durable.journal(run_id)]
    assert keys == ["quota", "crm", "mail", "compensate:crm", "compensate:quota"]


if __name__ == "__main__":
    main()
