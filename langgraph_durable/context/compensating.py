"""The compensation of a step: declared with the call, checked before it, stored as data.

What is stored is a tool's name and its arguments, in the write that records the step: any
worker can make that call later, and no code of the step has to be there then. Before the
result is known, and when a function fails to tell them, the arguments may be missing; then
a person is asked for them, should the step ever have to be undone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

from langgraph_durable.errors import BadInput
from langgraph_durable.runs import Compensation, Effect, Refused
from langgraph_durable.tools import undoes
from langgraph_durable.values import decode, encode, message_of

if TYPE_CHECKING:
    from langgraph_durable.context import RunContext


class Undoing(TypedDict):
    """A compensation as it is stored."""

    tool: str
    arguments: dict[str, Any] | None  # None: nobody knows them yet


@dataclass(frozen=True, slots=True)
class Undo:
    """What a step that is about to be made will record about its compensation."""

    ctx: RunContext
    key: str
    declared: Compensation
    asked: Any  # what the step is called with

    def unknown(self) -> str:
        """Return what is stored as long as nobody knows whether the call happened."""
        arguments = self.declared.arguments
        return self._text(arguments if isinstance(arguments, Mapping) else None)

    def of(self, result: Any) -> str | None:
        """Return what is stored with a result; nothing for a call that a person refused.

        The call has been made, so nothing that goes wrong here may keep it from being recorded.
        """
        if isinstance(result, Refused):
            return None
        arguments = self.declared.arguments
        if isinstance(arguments, Mapping):
            return self._text(arguments)
        try:
            given = (result, self.asked) if _takes_two(arguments) else (result,)
            return self._text(dict(arguments(*given)))
        except Exception as error:  # whatever the application's own function raises
            said = f"{type(error).__name__}: {message_of(error)}"
            self.ctx.services.note("compensation_unknown", {"key": self.key, "error": said})
            return self._text(None)

    def _text(self, arguments: Mapping[str, Any] | None) -> str:
        stored = Undoing(
            tool=self.declared.tool, arguments=None if arguments is None else dict(arguments)
        )
        where = f"compensation of step {self.key!r}"
        return encode(stored, types=self.ctx.services.types, where=where)


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    return True


async def undo_of(
    ctx: RunContext, key: str, declared: Compensation | None, effect: Effect, asked: Any
) -> Undo | None:
    """Check a compensation before its step is made: what can't be undone so is not begun.

    Raises:
        UnknownTool: the hub has no such tool.
        BadInput: the step only reads, the tool can't be repeated safely, or the arguments
            don't fit it.
    """
    if declared is None:
        return None
    if not effect.is_write:
        raise BadInput(
            f"step {key!r} only reads: there is nothing that {declared.tool!r} could undo"
        )
    hub = ctx.services.tools
    spec = await hub.find(declared.tool)
    undoes(spec)
    undo = Undo(ctx, key, replace(declared, tool=spec.full_name), asked)
    if isinstance(declared.arguments, Mapping):
        await hub.check(spec.full_name, declared.arguments)
        undo.unknown()  # what can't be stored is refused here
    return undo


def read(ctx: RunContext, text: str) -> Undoing:
    """Read a stored compensation."""
    stored: Undoing = decode(text, types=ctx.services.types)
    return stored
