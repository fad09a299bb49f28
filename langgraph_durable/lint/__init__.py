"""Read the code of nodes and name what would differ on replay, line by line.

The rules know objects, not spellings: `datetime.now` is found under whatever name it was
imported. What stands inside a step (a function handed to `ctx.once`) is fine. A line that
ends in `# durable: ok` is not reported.

This is a reader, not a proof: code that it can't see (C, other packages, dynamic calls) is
not judged. `testing.replay_check` finds what it misses.
"""

from langgraph_durable.lint.finding import CODES, Finding
from langgraph_durable.lint.report import MigrationReport, migration_report
from langgraph_durable.lint.rules import check_function
from langgraph_durable.lint.sources import NodeSource, nodes_of
from langgraph_durable.lint.writes import check_tools
from langgraph_durable.tools import ToolHub

__all__ = [
    "CODES",
    "Finding",
    "MigrationReport",
    "NodeSource",
    "check",
    "check_function",
    "migration_report",
    "nodes_of",
]


def check(target: object) -> list[Finding]:
    """Return the findings of a graph, a StateGraph, an agent's function, or the tools of a hub."""
    if isinstance(target, ToolHub):
        return check_tools(target)
    found: dict[tuple[str, int, str, str], Finding] = {}
    for node in nodes_of(target):
        for function in node.reachable():
            for finding in check_function(function, node.name):
                key = (finding.file, finding.line, finding.code, finding.message)
                found.setdefault(key, finding)
    return sorted(found.values(), key=lambda f: (f.file, f.line, f.code))
