"""What must change, node by node, for a graph to go from graph mode to steps mode."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from langgraph.types import interrupt

from langgraph_durable.lint.finding import Finding
from langgraph_durable.lint.rules import STEPS, _step, check_function
from langgraph_durable.lint.sources import NodeSource, names_of, nodes_of, resolve, tree_of

_ADR = """\
---
status: proposed
agent: {agent}
mode: steps
---

# {agent} moves from graph mode to steps mode

## Context

{agent} runs in graph mode: LangGraph's checkpointer resumes between nodes, and whatever a
node did before a crash or a question is done again. It has {nodes} nodes; {clean} of them
could run in steps mode as they are.

## Decision

Register a new version in steps mode. Runs that are under way end in graph mode under the
version that they began with. These nodes change:

{changes}

## Consequences

- A crash or an approval repeats no recorded call; the journal is the only state.
- Code between steps must be deterministic; `langgraph-durable lint` guards it in CI.
- Both versions are deployed until the last run of the old one has ended.
"""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node: what is found in it, and what already goes through the journal."""

    name: str
    kind: str
    findings: tuple[Finding, ...]
    steps: int
    interrupts: int

    @property
    def is_ready(self) -> bool:
        """Whether the node can run in steps mode as it is."""
        return not self.findings and self.kind == "function"


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """All nodes of a graph."""

    agent: str
    nodes: tuple[NodeReport, ...]

    def lines(self) -> Iterable[str]:
        """Yield the report as text."""
        for node in self.nodes:
            state = "ready" if node.is_ready else "to change"
            yield f"{node.name}: {state} ({node.steps} steps, {node.interrupts} interrupts)"
            if node.kind != "function":
                yield f"  is a {node.kind}, whose calls are not journaled: see integrations.langchain"
            yield from (f"  line {f.line}: {f.message}" for f in node.findings)

    def adr(self) -> str:
        """Return a draft of the ADR that the migration needs."""
        changes = [
            f"- `{node.name}`: "
            + (
                "; ".join(sorted({f.message for f in node.findings}))
                or f"a {node.kind}: wrap its calls"
            )
            for node in self.nodes
            if not node.is_ready
        ]
        return _ADR.format(
            agent=self.agent,
            nodes=len(self.nodes),
            clean=sum(node.is_ready for node in self.nodes),
            changes="\n".join(changes) or "- none: every node is ready.",
        )


def migration_report(target: object, agent: str) -> MigrationReport:
    """Read a graph's nodes and say what must change in each."""
    return MigrationReport(agent, tuple(_node(node) for node in nodes_of(target)))


def _node(node: NodeSource) -> NodeReport:
    findings: list[Finding] = []
    steps = interrupts = 0
    for function in node.reachable():
        findings += check_function(function, node.name)
        read = tree_of(function)
        if read is None:
            continue
        names = names_of(function, read[0])
        calls = [inner for inner in ast.walk(read[0]) if isinstance(inner, ast.Call)]
        steps += sum(_step(call) in STEPS for call in calls)
        interrupts += sum(resolve(call.func, names) is interrupt for call in calls)
    return NodeReport(node.name, node.kind, tuple(findings), steps, interrupts)
