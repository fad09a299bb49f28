"""An agent made by LangChain's `create_agent`, durable in each mode: see `# durable`."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage

from langgraph_durable import Decision, Durable, Worker  # durable
from langgraph_durable.integrations.langchain import DurableMiddleware  # durable
from langgraph_durable.testing import ScriptedModel

called: Counter[str] = Counter()


def list_invoices(customer: str) -> str:
    """List the invoices of a customer."""
    called["list_invoices"] += 1
    return f"{customer}: A-1 4200, A-2 4200"


def refund(invoice: str, idempotency_key: str) -> str:  # durable: models don't see the key
    """Refund an invoice."""
    called["refund"] += 1
    return f"refunded {invoice}"


def call(name: str, **args: str) -> AIMessage:
    """What a model says that calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": name, "type": "tool_call"}])


SCRIPT = [call("list_invoices", customer="li"), call("refund", invoice="A-2"), AIMessage("Done.")]


PAYS = {"refund": "idempotent"}  # durable


def agent(model: ScriptedModel) -> Any:
    return create_agent(
        model,
        [list_invoices, refund],
        middleware=[DurableMiddleware(reads=["list_invoices"], effects=PAYS, asks=PAYS)],  # durable
    )


def main() -> None:
    for mode in ("steps", "graph"):
        called.clear()
        model = ScriptedModel(SCRIPT)
        with tempfile.TemporaryDirectory() as folder:
            durable = Durable(f"sqlite:///{Path(folder) / 'runs.db'}")
            durable.graph("support", agent(model), mode=mode)  # durable
            message = {"role": "user", "content": "I was charged twice"}
            run_id = durable.submit("support", {"messages": [message]})
            Worker(durable).run_once()  # until the refund asks

            [question] = durable.questions()
            print(mode, "asks:", question.tool, question.payload)
            durable.decide(question.id, Decision.approve("mei"))
            Worker(durable).run_once()

            run = durable.get(run_id)
            print(mode, "ends:", run.output["messages"][-1].content, dict(called), run.usage)
            assert run.output["messages"][-2].content == "refunded A-2"
            assert called == {"list_invoices": 1, "refund": 1}
            assert model.calls == 3  # as many as without the pause


if __name__ == "__main__":
    main()
