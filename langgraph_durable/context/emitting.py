"""Messages that a step sends: in the outbox by the commit that records the step."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from langgraph_durable import topics
from langgraph_durable.errors import BadInput
from langgraph_durable.runs import Emitted, Refused

if TYPE_CHECKING:
    from langgraph_durable.context import RunContext

MAX_PAYLOAD_BYTES = 256_000
Tells = Callable[[Any], tuple[str, Mapping[str, Any]] | None]


def message(ctx: RunContext, key: str, topic: str, payload: Mapping[str, Any]) -> Emitted:
    """Return a message, or refuse one that nobody would get or that can't be sent.

    Raises:
        BadInput: no sink takes the topic, or the payload is no JSON object.
    """
    if not topics.matches(ctx.services.topics, topic):
        known = ", ".join(ctx.services.topics) or "none"
        raise BadInput(
            f"step {key!r}: no sink takes the topic {topic!r}. Sinks are for: {known}. "
            "Give one to Durable(..., outbox={'" + str(topic) + "': sink})."
        )
    try:
        size = len(json.dumps(payload, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BadInput(f"step {key!r}: the payload of {topic!r} is no JSON: {error}") from error
    if not isinstance(payload, Mapping) or size > MAX_PAYLOAD_BYTES:
        raise BadInput(
            f"step {key!r}: the payload of {topic!r} must be a JSON object of at most "
            f"{MAX_PAYLOAD_BYTES:,} bytes, not {type(payload).__name__} of {size:,}"
        )
    return Emitted(key, topic, ctx.tenant, payload)


def told_by(
    ctx: RunContext, key: str, tells: Tells | None
) -> Callable[[Any], tuple[Emitted, ...]] | None:
    """Return what makes the message of a result; a refused call tells nothing."""
    if tells is None:
        return None

    def emits(result: Any) -> tuple[Emitted, ...]:
        told = None if isinstance(result, Refused) else tells(result)
        return () if told is None else (message(ctx, key, *told),)

    return emits
