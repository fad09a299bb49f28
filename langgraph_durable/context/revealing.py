"""Read a secret: asked of the provider once a pass, and never recorded."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from langgraph_durable import calls
from langgraph_durable.errors import BadInput, SecretMissing
from langgraph_durable.runs import Step
from langgraph_durable.secrets import Revealed, Secret, Wanted

if TYPE_CHECKING:
    from langgraph_durable.context import RunContext


async def reveal(ctx: RunContext, name: str) -> Secret:
    """Return a secret of the run's tenant: see `RunContext.secret`."""
    known = ctx.state.secrets.get(name)
    if known is not None:
        return known
    provider = ctx.services.secrets
    if provider is None:
        raise SecretMissing(name, ctx.tenant, ctx.agent, "no provider: give Durable(..., secrets=)")
    try:
        found = await calls.call(provider, Wanted(name, ctx.tenant, ctx.agent, ctx.run_id))
    except LookupError:
        found = None
    if found is None:
        raise SecretMissing(name, ctx.tenant, ctx.agent, f"{provider!r} has none")
    if not isinstance(found, str | SecretStr):
        raise BadInput(f"secret {name!r}: {provider!r} gave {type(found).__name__}, not a text")
    secret = Secret(found if isinstance(found, str) else found.get_secret_value())
    ctx.state.secrets.add(name, secret)
    return secret


def record(ctx: RunContext, step: Step) -> Coroutine[Any, Any, Step]:
    """Record a step, with markers in place of the secrets that this pass has read; to be awaited."""
    secrets = ctx.state.secrets
    return ctx.journal.record(_hiding(step, secrets) if secrets else step)


def _hiding(step: Step, secrets: Revealed) -> Step:
    return replace(
        step,
        value=None if step.value is None else secrets.hide_json(step.value),
        compensation=step.compensation and _undoing(step.compensation, secrets),
        request=secrets.hide(step.request),
        error=None if step.error is None else secrets.hide(step.error),
        emits=tuple(replace(told, payload=secrets.hide_plain(told.payload)) for told in step.emits),
    )


def _undoing(text: str, secrets: Revealed) -> str:
    """Forget the arguments of a compensation that hold a secret: with a marker in its place the
    call would undo something else, so a person is asked for them."""
    stored = json.loads(text)
    hidden = secrets.hide_plain(stored)
    return text if hidden == stored else json.dumps({**hidden, "arguments": None})
