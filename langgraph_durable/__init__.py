"""Durable steps for LangGraph: agents that survive `kill -9`, deploys and double clicks.

Names are imported at their first use: pytest loads our plugin in every session, also in
those that never use it.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph_durable.app import Durable
    from langgraph_durable.context import RunContext, current_run
    from langgraph_durable.errors import DurableError
    from langgraph_durable.policy import Rule
    from langgraph_durable.relay import Message, Webhook
    from langgraph_durable.runs import (
        Budget,
        Compensation,
        Decision,
        Effect,
        Price,
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
    "Budget",
    "Compensation",
    "Decision",
    "Durable",
    "DurableError",
    "Effect",
    "Message",
    "Price",
    "Question",
    "Refused",
    "Retry",
    "Rule",
    "Run",
    "RunContext",
    "Status",
    "ToolHub",
    "Webhook",
    "Worker",
    "__version__",
    "current_run",
]

_HOMES = {
    "Durable": "app",
    "DurableError": "errors",
    "Message": "relay",
    "RunContext": "context",
    "Rule": "policy",
    "ToolHub": "tools",
    "Webhook": "relay",
    "Worker": "worker",
    "current_run": "context",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'runs')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
