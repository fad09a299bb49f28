"""The smallest graph in steps mode: its worker is killed in the middle, another one goes on."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from langgraph_durable import Durable, RunContext, ToolHub, Worker


class State(TypedDict, total=False):
    ticket: str
    category: str
    refund: str


def build(folder: Path, *, deadly: bool) -> Durable:
    """Build the app; both processes do."""

    def note(what: str) -> None:
        with (folder / "calls.txt").open("a") as file:
            print(what, file=file)

    def model(messages: object, route: str) -> str:
        note("model")
        return "refund"

    hub = ToolHub()

    @hub.tool(effect="idempotent")
    def refund(ticket: str, idempotency_key: str) -> str:
        note(f"refund {idempotency_key}")
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)  # after the effect, before it is recorded
        return "paid"

    async def classify(state: State, runtime: Runtime[RunContext]) -> State:
        answer = await runtime.context.llm("classify", state["ticket"], route="fast")
        return {"category": str(answer.content)}

    async def pay(state: State, runtime: Runtime[RunContext]) -> State:
        return {"refund": await runtime.context.tool("pay", "refund", {"ticket": state["ticket"]})}

    graph = StateGraph(State, context_schema=RunContext).add_sequence([classify, pay])
    graph.add_edge(START, "classify").add_edge("pay", END)
    durable = Durable(f"sqlite:///{folder / 'runs.db'}", tools=hub, models={"fast": model})
    durable.graph("support", graph, mode="steps")
    return durable


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        durable = build(Path(name), deadly=False)
        run_id = durable.submit("support", {"ticket": "charged twice"})
        first = subprocess.run([sys.executable, __file__, name], check=False)
        print(f"the first worker ended with {first.returncode}; {durable.get(run_id).status=}")
        second = Worker(durable, lease_seconds=1)
        while not durable.get(run_id).status.is_final:  # until the dead worker's lease is over
            second.run_once()
        run, calls = durable.get(run_id), (Path(name) / "calls.txt").read_text().splitlines()
        print("the second worker's result:", run.output, *calls, sep="\n")
        assert first.returncode == -signal.SIGKILL
        assert run.output["refund"] == "paid"
        assert calls.count("model") == 1  # answered from the journal the second time
        assert calls.count(f"refund {run_id}:pay") == 2  # twice, under one idempotency key


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Worker(build(Path(sys.argv[1]), deadly=True), lease_seconds=1).run_once()
    else:
        main()
