"""Tell runs that came past a point on old code from those that reach it on new code.

The journal has no order to ask "is this a replay?" by: branches run beside each other. So a
point counts as passed if an earlier pass left anything that this pass has not asked for yet.
In steps mode that is anything of the run; in graph mode, where finished nodes don't run again,
anything of the node that is running. What is beside the point, in a branch that runs at the
same time, may count as behind it: then the run stays on the old side, which is always sound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph_durable.context.calls import check_key
from langgraph_durable.runs import Step
from langgraph_durable.values import decode, encode

if TYPE_CHECKING:
    from langgraph_durable.context import RunContext

PREFIX = "patched:"


async def patched(ctx: RunContext, id_: str) -> bool:
    """See `RunContext.patched`."""
    key = f"{PREFIX}{id_}"
    check_key(key)
    at = ctx.here()
    ctx.state.gate(at)
    await ctx.state.landed(key)  # another branch may be deciding the same
    ctx.state.see(key, at)
    known = ctx.journal.recorded(key)
    if known is None:
        is_new = not _came_past(ctx, at.path)
        text = encode(is_new, types=ctx.services.types, where=f"step {key!r}")
        marker = Step(key=key, kind="patch", name=id_, request=id_, value=text, place=at.path)
        known = await ctx.state.fly(ctx.journal.record(marker), key)
    return bool(decode(known.value or "false", types=ctx.services.types))


def _came_past(ctx: RunContext, path: str) -> bool:
    left = [
        step.place
        for step in ctx.journal.steps()
        if step.epoch < ctx.epoch and step.kind != "patch" and not ctx.state.has_used(step.key)
    ]
    for question in ctx.journal.questions():  # a native interrupt() is no step
        place = question.key.rpartition("#")[0]
        if question.kind == "interrupt" and place not in ctx.state.interrupts:
            left.append(place)
    return any(ctx.run.mode == "steps" or _is_of(place, path) for place in left)


def _is_of(place: str, node: str) -> bool:
    return place == node or place.startswith(f"{node}/")
