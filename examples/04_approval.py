"""A refund that waits for a person: refused with a reason, approved, and edited."""

from typing import TypedDict

from langgraph.graph import END, START, StateGraph

from langgraph_durable import Decision, Durable, Refused, Rule, ToolHub, Worker, current_run
from langgraph_durable.errors import AlreadyDecided, BadInput

hub = ToolHub()
ledger: dict[str, int] = {}


@hub.tool(effect="idempotent")
def refund(invoice: str, amount_cents: int, idempotency_key: str) -> str:
    ledger.setdefault(idempotency_key, amount_cents)  # a repeat finds its key, and pays nothing
    return f"refunded {ledger[idempotency_key]} cents"


class State(TypedDict, total=False):
    invoice: str
    amount_cents: int
    reply: str


async def pay(state: State) -> State:
    arguments = {"invoice": state["invoice"], "amount_cents": state["amount_cents"]}
    done = await current_run().tool("refund", "refund", arguments)
    return {"reply": f"Sorry. {done}" if isinstance(done, Refused) else f"Good news: {done}."}


def main() -> None:
    graph = StateGraph(State).add_node(pay).add_edge(START, "pay").add_edge("pay", END)
    over_limit = {"argument": "amount_cents", "more_than": 1000}
    durable = Durable("sqlite://", tools=hub, rules=[Rule("ask", tool="refund", when=over_limit)])
    durable.graph("refunds", graph, mode="steps")
    worker = Worker(durable)

    def submit(amount_cents: int) -> str:
        return durable.submit("refunds", {"invoice": "A-2", "amount_cents": amount_cents})

    small, first, second, third = submit(500), submit(4200), submit(4300), submit(99_999)
    worker.run_until_idle()  # the small one is paid; three ask, and hold no worker
    print("open:", [(q.tool, q.payload) for q in durable.questions()])
    ask = {question.run_id: question for question in durable.questions()}

    durable.decide(ask[first].id, Decision.approve("mei"))
    durable.decide(ask[first].id, Decision.approve("mei"))  # a double click changes nothing
    durable.decide(ask[second].id, Decision.reject("mei", "already refunded in May"))
    try:
        durable.decide(ask[second].id, Decision.approve("tom"))
    except AlreadyDecided as late:
        print("too late:", late)
    try:
        durable.decide(
            ask[third].id, Decision.edit("mei", {"invoice": "A-2", "amount_cents": "all"})
        )
    except BadInput as wrong:
        print("refused, still open:", wrong)
    durable.decide(ask[third].id, Decision.edit("mei", {"invoice": "A-2", "amount_cents": 9999}))
    worker.run_until_idle()

    replies = [durable.get(run).output["reply"] for run in (small, first, second, third)]
    print("\n".join(replies))
    assert replies[2] == "Sorry. The call was refused by mei: already refunded in May"
    assert sorted(ledger.values()) == [500, 4200, 9999]


if __name__ == "__main__":
    main()
