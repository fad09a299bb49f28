"""What came out of a graph or a function, before it is turned into an outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph_durable.context import RunContext
from langgraph_durable.errors import NotEncodable, TooLarge
from langgraph_durable.runs import Question
from langgraph_durable.values import encode, readable

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
