"""Every system that is measured, by name. Each does its jobs in a process of its own.

A system is a class with `batch(runs)` and some with more jobs; a job does the work, checks
what came out, and returns `{"seconds": …}` of the part that is timed.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "plain": "langgraph:Plain",
    "saver-postgres": "langgraph:Saver",
    "savers-postgres": "langgraph:SaverForEachRun",
    "saver-sqlite": "langgraph:Saver",
    "raw-postgres": "raw:Raw",
    "raw-sqlite": "raw:Raw",
    "steps-postgres": "durable:Steps",
    "steps-sqlite": "durable:Steps",
    "llm-postgres": "durable:Llm",
    "function-postgres": "durable:Function",
    "function-sqlite": "durable:Function",
    "graph-postgres": "durable:Graph",
    "graph-sqlite": "durable:Graph",
    "journal-postgres": "journal:Journal",
    "journal-sqlite": "journal:Journal",
    "filled-postgres": "filled:Filled",
    "filled-sqlite": "filled:Filled",
    "crowd-postgres": "crowd:Crowd",
    "crowd-sqlite": "crowd:Crowd",
    "memory-postgres": "memory:Memory",
    "memory-sqlite": "memory:Memory",
    "dbos-postgres": "dbos:Steps",
    "dbos-sqlite": "dbos:Steps",
    "dbos-graph-postgres": "dbos:Graph",
    "absurd-postgres": "absurd:Absurd",
    "absurd-async-postgres": "absurd:AbsurdAsync",
    "temporal": "temporal:Temporal",
}


def start(name: str, url: str) -> Any:
    """Make a system ready for its first job."""
    module, _, attribute = _WHERE[name].partition(":")
    made = importlib.import_module(f"benchmarks.systems.{module}")
    return getattr(made, attribute)(url)
