"""Durable steps for LangGraph: agents that survive `kill -9`, deploys and double clicks."""

from importlib.metadata import PackageNotFoundError, version

from langgraph_durable.app import Durable
from langgraph_durable.context import RunContext, current_run
from langgraph_durable.errors import DurableError
from langgraph_durable.policy import Rule
from langgraph_durable.runs import (
    Decision,
    Effect,
    Question,
    Refused,
    Retry,
    Run,
    Status,
)
from langgraph_durable.tools import ToolHub
from langgraph_durable.worker import Worker

try:
    __version__ = version("langgraph-durable")
except PackageNotFoundError:  # running from a source tree that isn't installed
    __version__ = "0+unknown"

__all__ = [
    "Decision",
    "Durable",
    "DurableError",
    "Effect",
    "Question",
    "Refused",
    "Retry",
    "Rule",
    "Run",
    "RunContext",
    "Status",
    "ToolHub",
    "Worker",
    "__version__",
    "current_run",
]
