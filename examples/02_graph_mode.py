"""An existing compiled graph with a native `interrupt()`, durable by one line."""

import tempfile
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from langgraph_durable import Decision, Durable, Status, Worker


class State(TypedDict, total=False):
    draft: str
    sent: str


drafts = 0


def write(state: State) -> State:
    global drafts
    drafts += 1
    return {"draft": f"Dear customer, draft {drafts}"}


def review(state: State) -> State:
    return {"draft": interrupt({"please review": state["draft"]})}


def send(state: State) -> State:
    return {"sent": state["draft"]}


def existing_graph() -> Any:
    graph = StateGraph(State).add_sequence([write, review, send])
    graph.add_edge(START, "write").add_edge("send", END)
    return graph.compile(checkpointer=InMemorySaver())  # replaced, on a copy, by a durable one


def app(url: str) -> Durable:
    durable = Durable(url)
    durable.graph("letters", existing_graph(), mode="graph")  # the one line
    return durable


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'runs.db'}"

        durable = app(url)
        run_id = durable.submit("letters", {})
        Worker(durable).run_once()
        assert durable.get(run_id).status is Status.WAITING_HUMAN  # a row; no worker waits

        durable = app(url)  # another process, another day
        [question] = durable.questions()
        print("asked:", question.payload)
        durable.decide(question.id, Decision.respond("mei", "Dear Ms Li, we are sorry."))
        Worker(durable).run_once()

        run = durable.get(run_id)
        print("the letter:", run.output["sent"])
        assert run.status is Status.SUCCEEDED
        assert run.output["sent"] == "Dear Ms Li, we are sorry."
        assert drafts == 1  # the checkpoint kept it


if __name__ == "__main__":
    main()
