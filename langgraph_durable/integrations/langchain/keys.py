"""Keys of steps that nobody named: by the stable place in the graph, and what is called there."""

from __future__ import annotations

import hashlib

from langgraph_durable.context import RunContext, current_run
from langgraph_durable.context.calls import MAX_KEY_CHARACTERS
from langgraph_durable.errors import DurableError

_ROOM = 8  # for the "#2" of a second call


def run_here() -> RunContext | None:
    """Return the run that is being executed here, if there is one."""
    try:
        return current_run()
    except DurableError:
        return None


def named(*parts: str) -> str:
    """Join the parts of a key; one that is too long, or not printable, ends in its digest."""
    key = ":".join(parts)
    limit = MAX_KEY_CHARACTERS - _ROOM
    if len(key) <= limit and key.isprintable():
        return key
    mark = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    shown = "".join(c if c.isprintable() else "?" for c in key[: limit - 17])
    return f"{shown}~{mark}"


def next_key(ctx: RunContext, what: str) -> str:
    """Return the key of the next call of its kind at this place. Call it before any `await`."""
    at = ctx.here()
    return ctx.state.free_key(named(at.path, what), at)
