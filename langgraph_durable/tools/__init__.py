"""Where tools live, and what each does to the world.

A hub holds functions, LangChain tools, tool servers (MCP) and functions of the caller's
own that reach a whole set of tools. All calls pass through one method, `ToolHub.call`,
which checks arguments and approval and hands the tool what only the runtime may give: the
idempotency key and the fencing token.

Inside: hub → run → arguments → spec.
"""

from langgraph_durable.tools.hub import ToolHub
from langgraph_durable.tools.spec import (
    KEY_ARGUMENT,
    TOKEN_ARGUMENT,
    Approval,
    CallInfo,
    Found,
    Probe,
    ToolServer,
    ToolSpec,
    digest,
    found,
    is_name_of,
    undoes,
)

__all__ = [
    "KEY_ARGUMENT",
    "TOKEN_ARGUMENT",
    "Approval",
    "CallInfo",
    "Found",
    "Probe",
    "ToolHub",
    "ToolServer",
    "ToolSpec",
    "digest",
    "found",
    "is_name_of",
    "undoes",
]
