"""The work that every system does: a chain of nodes, each with one trivial model step.

A node's answer is 400 bytes and tells which run and which node made it, so that a wrong,
missing or mixed-up result is seen. What was timed is always checked.
"""

from __future__ import annotations

import operator
import random
import string
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

NODES = 20
ANSWER_BYTES = 400
_noise = random.Random(7)  # text that a database can't press together
FILLER = "".join(_noise.choices(string.ascii_letters + string.digits, k=100_000))


class State(TypedDict, total=False):
    """What the chain keeps: which run it is, the last answer, and how many there were."""

    seed: int
    answer: str
    count: int


Step = Callable[[int, int], Awaitable[str]]  # (seed, node) -> answer


def answer(seed: int, node: int, size: int = ANSWER_BYTES) -> str:
    """Return what the model says to a run at a node."""
    head = f"{seed:08d}/{node:06d} "
    start = (seed * 7_919 + node * 48_271) % (len(FILLER) - size)
    return head + FILLER[start : start + size - len(head)]


async def model(seed: int, node: int) -> str:
    """Answer at once: what is measured is everything around a model call."""
    return answer(seed, node)


def chain(step: Step, nodes: int = NODES, **metadata: Any) -> StateGraph[Any, Any, Any, Any]:
    """Build the graph: `nodes` nodes one after another, each of which makes one step."""
    graph = StateGraph(State)
    before = START
    for i in range(nodes):
        name = f"n{i}"
        graph.add_node(name, node(step, i), metadata=metadata or None)
        graph.add_edge(before, name)
        before = name
    graph.add_edge(before, END)
    return graph


def node(step: Step, i: int) -> Callable[[State], Awaitable[State]]:
    """Return the i-th node."""

    async def call(state: State) -> State:
        said = await step(state["seed"], i)
        return {"answer": said, "count": state["count"] + 1}

    call.__qualname__ = f"node_{i}"  # Temporal names activities by it
    return call


def loop(step: Step) -> StateGraph[Any, Any, Any, Any]:
    """Build a graph of one node that runs `times` times: for long runs."""

    class Times(State, total=False):
        times: int

    async def work(state: Times) -> State:
        said = await step(state["seed"], state["count"])
        return {"answer": said, "count": state["count"] + 1}

    graph = StateGraph(Times)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_conditional_edges(
        "work", lambda state: END if state["count"] >= state["times"] else "work"
    )
    return graph


class Texts(TypedDict):
    """A state that grows."""

    texts: Annotated[list[str], operator.add]


def growing(step: Step, nodes: int) -> StateGraph[Any, Any, Any, Any]:
    """Build a chain of nodes that each add what their step returns: how much is kept for it?"""
    graph = StateGraph(Texts)
    before = START
    for i in range(nodes):
        name = f"n{i}"
        graph.add_node(name, _adding(step, i))
        graph.add_edge(before, name)
        before = name
    graph.add_edge(before, END)
    return graph


def _adding(step: Step, i: int) -> Callable[[Texts], Awaitable[Texts]]:
    async def add(state: Texts) -> Texts:
        return {"texts": [await step(1, i)]}

    return add


def given(seed: int) -> State:
    """Return the input of a run."""
    return {"seed": seed, "answer": "", "count": 0}


class WrongResult(AssertionError):
    """A system was timed and did not do the work."""


def check(outputs: list[Any], seeds: list[int], nodes: int = NODES) -> None:
    """Refuse outputs that aren't those of these runs.

    Raises:
        WrongResult: one is missing or wrong.
    """
    if len(outputs) != len(seeds):
        raise WrongResult(f"{len(outputs)} results of {len(seeds)} runs")
    for output, seed in zip(outputs, seeds, strict=True):
        wanted = (answer(seed, nodes - 1), nodes)
        if (output.get("answer"), output.get("count")) != wanted:
            raise WrongResult(f"run {seed} ended with {output!r}")


def check_count(what: str, found: int, wanted: int) -> None:
    """Refuse another number of records than the work makes.

    Raises:
        WrongResult: it is another number.
    """
    if found != wanted:
        raise WrongResult(f"{found} {what}, not {wanted}")
