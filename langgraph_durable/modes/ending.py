"""What came out of a graph or a function, before it is turned into an outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from langgraph_durable.context import RunContext
from langgraph_durable.errors import NotEncodable, TooLarge
from langgraph_durable.runs import Asked, Broke, Done, Outcome, Question, Retried
from langgraph_durable.values import decode, encode, readable

MAX_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class Ending:
    """A value, questions that LangGraph surfaced, or a drain."""

    value: Any = None
    asked: tuple[Question, ...] = ()
    drained: bool = False

    def text(self, ctx: RunContext) -> str:
        """Encode the result of the run.

        The work is done: a result that can't be encoded is no reason to call the run
        failed. What can't be kept is replaced by a readable form, with an event that
        names it.
        """
        types = ctx.services.types
        try:
            return encode(self.value, types=types, where="the run's output")
        except (NotEncodable, TooLarge) as error:
            ctx.services.note("output_not_encodable", {"message": str(error)})
        if not isinstance(self.value, Mapping):
            return encode(_replaced(self.value), types=types, where="the run's output")
        kept = {}
        for name, value in self.value.items():
            try:
                encode(value, types=types, where=f"output {name!r}")
                kept[str(name)] = value
            except (NotEncodable, TooLarge):
                kept[str(name)] = _replaced(value)
        return encode(kept, types=types, where="the run's output")


def _replaced(value: Any) -> dict[str, str]:
    return {"not_encodable": type(value).__name__, "readable": readable(value, MAX_SHOWN)}


def hiding(outcome: Outcome, ctx: RunContext) -> Outcome:
    """Return an outcome with markers in place of the secrets that the pass has read."""
    secrets, types = ctx.state.secrets, ctx.services.types

    def hide(value: Any) -> Any:
        text = encode(value, types=types, where="the question")
        hidden = secrets.hide_json(text)
        return value if hidden is text else decode(hidden, types=types)

    match outcome:
        case Done(output):
            return Done(secrets.hide_json(output))
        case Broke(error) | Retried(error):
            return replace(outcome, error=secrets.hide_plain(error))
        case Asked(questions):
            return Asked(tuple(replace(q, payload=hide(q.payload)) for q in questions))
        case _:
            return outcome
