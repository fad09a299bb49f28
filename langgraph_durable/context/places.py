"""Where in a graph a call is made: a path that is the same on every replay.

LangGraph's own ids (`checkpoint_ns`, task ids) are new on each fresh run, and inside a
subgraph the node, step and path are the inner graph's. So a handler notes for every task
that starts which node, step and path belong to its namespace; a nested place is then the
chain of those, such as `sub@2/#1/in@1` (langgraph-facts §8).

The number is the superstep in graph mode, where the checkpoint keeps it. In steps mode it
says which visit of its node this is: a deploy that adds a node before shifts supersteps, and
must not shift the keys that are made of places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.runtime import Runtime

OUTSIDE = "the agent function"
_SEPARATOR = "|"


def _no_objection(_namespace: str) -> None:
    """Let a task begin or end."""


class Places(BaseCallbackHandler):
    """Notes the node, step and path of each task of a pass.

    It also asks `may_begin` before a task's code runs, and `may_end` when it has ended as if
    all were well: what these raise is what the task ends with, so it is not committed.
    """

    run_inline = True  # in the task that starts, before its code runs
    raise_error = True
    ignore_llm = True
    ignore_chat_model = True
    ignore_retriever = True
    ignore_agent = True
    ignore_custom_event = True
    ignore_retry = True

    def __init__(
        self,
        may_begin: Callable[[str], None] = _no_objection,
        may_end: Callable[[str], None] = _no_objection,
    ) -> None:
        self.watched_by(may_begin, may_end)
        # callback run -> the namespace of its task, and whether it is the task itself (by the
        # number of a UUID, which hashes at once)
        self._inside: dict[int, tuple[str, bool]] = {}
        self._calls: dict[str, int] = {}  # how many graphs a task has called
        self._tries: dict[str, list[int]] = {}  # how many when each try of it began
        self._names: dict[str, str] = {}
        self._graphs: dict[UUID, int] = {}
        self._visits: dict[tuple[str, str], dict[object, int]] = {}  # (caller, node) -> supersteps
        self.counts_visits = False  # steps mode: name a task by its node's visits
        self.counts_graphs = False  # a plain function may call several: each has its number

    def watched_by(self, may_begin: Callable[[str], None], may_end: Callable[[str], None]) -> None:
        """Say who is asked."""
        self._may_begin, self._may_end = may_begin, may_end

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
        namespace = metadata.get("langgraph_checkpoint_ns") if metadata else None
        if metadata is None or namespace is None:
            if self.counts_graphs:
                self._graphs[run_id] = len(self._graphs) + 1
            return
        if namespace not in self._names:
            graph = self._graphs.get(parent_run_id, 1) if parent_run_id and self._graphs else 1
            self.note(metadata, "" if graph == 1 else f"#{graph}/")
        around = self._inside.get(parent_run_id.int) if parent_run_id else None
        is_task = around is None or around[0] != namespace
        self._inside[run_id.int] = (namespace, is_task)
        if is_task:
            self._count(namespace)
            self._may_begin(namespace)

    def on_chain_end(
        self,
        outputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """Ask whether a task may end, before it is committed."""
        ended = self._inside.pop(run_id.int, None)
        if ended is not None and ended[1]:
            self._may_end(ended[0])

    def on_chain_error(
        self,
        error: BaseException,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """Forget a task that failed."""
        self._inside.pop(run_id.int, None)

    def __contains__(self, namespace: str) -> bool:
        """Whether a task is known."""
        return namespace in self._names

    def note(self, metadata: Mapping[str, Any], before: str = "") -> None:
        """Note the task that this metadata is about, unless it is known."""
        namespace = metadata.get("langgraph_checkpoint_ns")
        if namespace is not None and namespace not in self._names:
            self._names[namespace] = before + self._named(namespace, before, metadata)

    def _named(self, namespace: str, before: str, metadata: Mapping[str, Any]) -> str:
        node, step = metadata.get("langgraph_node", "?"), metadata.get("langgraph_step", "?")
        sent = _send_index(metadata.get("langgraph_path", ()))
        if self.counts_visits:
            caller = namespace.rpartition(_SEPARATOR)[0]
            visits = self._visits.setdefault((caller, f"{before}{node}{sent}"), {})
            step = visits.setdefault(step, len(visits) + 1)
        return f"{node}@{step}{sent}"

    def forget_tries(self) -> None:
        """Begin another round: LangGraph counts the calls of a task anew."""
        self._calls.clear()
        self._tries.clear()

    def _count(self, namespace: str) -> None:
        self._tries.setdefault(namespace, [0]).append(self._calls.get(namespace, 0))
        if _SEPARATOR not in namespace:
            return  # the outermost graph has one call, and asks for none
        *outer, _ = namespace.split(_SEPARATOR)
        n = int(outer.pop()) if outer and outer[-1].isdigit() else 0
        caller = _SEPARATOR.join(outer)
        self._calls[caller] = max(self._calls.get(caller, 0), n + 1)

    def of(self, namespace: str) -> str:
        """Return the stable path of a task's namespace."""
        if _SEPARATOR not in namespace:
            return self._names.get(namespace) or namespace.partition(":")[0]
        parts = namespace.split(_SEPARATOR)
        named = []
        for i, part in enumerate(parts):
            if part.isdigit():  # the n-th subgraph call inside one task, over all its tries
                begun = self._tries.get(_SEPARATOR.join(parts[:i]), [0])
                n = int(part) - max(calls for calls in begun if calls <= int(part))
                named += [f"#{n}"] if n else []
                continue
            known = self._names.get(_SEPARATOR.join(parts[: i + 1]))
            named.append(known or part.partition(":")[0])
        return "/".join(named)


def is_within(namespace: str, outer: str) -> bool:
    """Whether a task is another one, or was called by it; everything is within the outside."""
    return not outer or namespace == outer or namespace.startswith(outer + _SEPARATOR)


def _send_index(path: Sequence[Any]) -> str:
    """Tell `Send` branches of one node apart: their path ends in an index."""
    if not path or path[0] != "__pregel_push":
        return ""
    return "".join(
        f"s{part}" for part in path[1:] if isinstance(part, int) and not isinstance(part, bool)
    )


class Here(NamedTuple):
    """The task that is running: its stable path, and which execution of it this is."""

    path: str
    execution: tuple[str, int]  # (namespace, the node's attempt)

    @property
    def namespace(self) -> str:
        """LangGraph's name of the task, new in each pass of steps mode; empty outside."""
        return self.execution[0]


def here(places: Places) -> Here:
    """Return where the calling code runs; outside of a graph it is the agent function."""
    config = var_child_runnable_config.get()
    if config is None:
        return Here(OUTSIDE, ("", 1))
    configurable, metadata = config.get("configurable", {}), config.get("metadata") or {}
    namespace = configurable.get("checkpoint_ns") or metadata.get("langgraph_checkpoint_ns", "")
    if namespace not in places:
        places.note(metadata)  # a caller has dropped the callbacks
    if not namespace:
        return Here(OUTSIDE, ("", 1))
    runtime = configurable.get("__pregel_runtime")
    info = runtime.execution_info if isinstance(runtime, Runtime) else None
    return Here(places.of(namespace), (namespace, info.node_attempt if info else 1))
