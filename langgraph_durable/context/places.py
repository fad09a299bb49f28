"""Where in a graph a call is made: a path that is the same on every replay.

LangGraph's own ids (`checkpoint_ns`, task ids) are new on each fresh run, and inside a
subgraph the node, step and path are the inner graph's. So a handler notes for every task
that starts which node, step and path belong to its namespace; a nested place is then the
chain of those, such as `sub@2/#1/in@1` (langgraph-facts §8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.runtime import Runtime

OUTSIDE = "the agent function"
_SEPARATOR = "|"


class Places(BaseCallbackHandler):
    """Notes the node, step and path of each task of a pass."""

    run_inline = True  # in the task that starts, before its code runs
    ignore_llm = True
    ignore_chat_model = True
    ignore_retriever = True
    ignore_agent = True
    ignore_custom_event = True
    ignore_retry = True

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note the task that starts, by its namespace."""
        if metadata is not None:
            namespace = metadata.get("langgraph_checkpoint_ns")
            if namespace is not None and namespace not in self._names:
                self._names[namespace] = _named(metadata)

    def of(self, namespace: str) -> str:
        """Return the stable path of a task's namespace."""
        parts = namespace.split(_SEPARATOR)
        named = []
        for i, part in enumerate(parts):
            if part.isdigit():  # the n-th subgraph call inside one task
                named.append(f"#{part}")
                continue
            known = self._names.get(_SEPARATOR.join(parts[: i + 1]))
            named.append(known or part.partition(":")[0])
        return "/".join(named)


def _named(metadata: dict[str, Any]) -> str:
    node, step = metadata.get("langgraph_node", "?"), metadata.get("langgraph_step", "?")
    sent = _send_index(metadata.get("langgraph_path", ()))
    return f"{node}@{step}{sent}"


def _send_index(path: Sequence[Any]) -> str:
    """Tell `Send` branches of one node apart: their path ends in an index."""
    if not path or path[0] != "__pregel_push":
        return ""
    return "".join(
        f"s{part}" for part in path[1:] if isinstance(part, int) and not isinstance(part, bool)
    )


@dataclass(frozen=True, slots=True)
class Here:
    """The task that is running: its stable path, and which execution of it this is."""

    path: str
    execution: tuple[str, int]  # (namespace, the node's attempt)


def here(places: Places) -> Here:
    """Return where the calling code runs; outside of a graph it is the agent function."""
    config = var_child_runnable_config.get()
    if config is None:
        return Here(OUTSIDE, ("", 1))
    configurable = config.get("configurable", {})
    namespace = configurable.get("checkpoint_ns") or (config.get("metadata") or {}).get(
        "langgraph_checkpoint_ns", ""
    )
    if not namespace:
        return Here(OUTSIDE, ("", 1))
    runtime = configurable.get("__pregel_runtime")
    info = runtime.execution_info if isinstance(runtime, Runtime) else None
    return Here(places.of(namespace), (namespace, info.node_attempt if info else 1))
