"""LangChain's shapes of asking a person, read and written.

`HumanInTheLoopMiddleware` asks by `interrupt()`: one question for all gated calls of a model
turn (`action_requests` and `review_configs`), or one for each call (`tool_approval`). It wants
its answer in a shape of its own. Here a `Decision` becomes that answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_durable.errors import BadInput
from langgraph_durable.runs import Choice, Decision

CHOICES: tuple[Choice, ...] = ("approve", "reject", "edit", "respond")


def answer_in_kind(payload: Any, decision: Decision) -> Any | None:
    """Return a decision as LangChain's middleware wants it, or None if it didn't ask.

    A decision about several calls holds for each of them; `respond` with a value that has
    the middleware's own shape is delivered as it is, so that each call gets its own.

    Raises:
        BadInput: the decision can't be said in that shape, or isn't allowed for a call.
    """
    actions = _actions(payload)
    if not actions:
        return None
    batched = "action_requests" in payload
    if decision.choice == "respond" and _is_answer(decision.value, batched):
        given = decision.value
    else:
        each = [_one(decision, action, len(actions)) for action in actions]
        given = {"decisions": each} if batched else each[0]
    _check(given["decisions"] if batched else [given], payload, actions)
    return given


def choices(payload: Any, schema: Mapping[str, Any] | None = None) -> tuple[Choice, ...] | None:
    """Return what may be decided about LangChain's question, or None if it isn't one.

    What every call of the question allows. If the calls have nothing in common, `respond`
    brings a decision for each.
    """
    actions = _actions(payload)
    if not actions:
        return None
    allowed = [_allowed(payload, i, action) for i, action in enumerate(actions)]
    if schema is not None:  # one call: its decisions are the branches of its response schema
        branches = schema.get("discriminator", {}).get("mapping") or [_type_of(schema)]
        allowed = [[c for c in CHOICES if c in branches]]
    common = tuple(c for c in CHOICES if all(c in each for each in allowed))
    if len(actions) > 1:  # one text, or one set of arguments, can't be meant for all of them
        common = (*(c for c in common if c in ("approve", "reject")), "respond")
    return common or ("respond",)


def _type_of(schema: Mapping[str, Any]) -> Any:
    return schema.get("properties", {}).get("type", {}).get("const")


def _actions(payload: Any) -> list[Mapping[str, Any]]:
    if not isinstance(payload, Mapping):
        return []
    if payload.get("type") == "tool_approval" and "name" in payload:
        return [payload]
    asked, configs = payload.get("action_requests"), payload.get("review_configs")
    if not isinstance(asked, list) or not isinstance(configs, list):
        return []
    return [action for action in asked if isinstance(action, Mapping) and "name" in action]


def _allowed(payload: Mapping[str, Any], i: int, action: Mapping[str, Any]) -> Sequence[str]:
    """`tool_approval` names none: its response schema decides."""
    configs = payload.get("review_configs", [])
    if len(configs) == len(payload.get("action_requests", [])) and i < len(configs):
        mine = configs[i]
    else:
        mine = next((c for c in configs if c.get("action_name") == action["name"]), {})
    allowed: Sequence[str] = mine.get("allowed_decisions", CHOICES)
    return allowed


def _is_answer(value: Any, batched: bool) -> bool:
    if not isinstance(value, Mapping):
        return False
    return isinstance(value.get("decisions"), list) if batched else value.get("type") in CHOICES


def _one(decision: Decision, action: Mapping[str, Any], count: int) -> dict[str, Any]:
    if decision.choice == "approve":
        return {"type": "approve"}
    if decision.choice == "reject":
        return {"type": "reject", **({"message": decision.reason} if decision.reason else {})}
    if count > 1:
        raise BadInput(
            f"the question is about {count} calls, and {decision.choice!r} can't be meant for all: "
            'respond with {"decisions": [...]}, one for each call and in their order'
        )
    if decision.choice == "edit":
        args = dict(decision.arguments or {})
        return {"type": "edit", "edited_action": {"name": action["name"], "args": args}}
    if not isinstance(decision.value, str):
        raise BadInput(
            f"the tool {action['name']!r} is answered with text, or with a decision such as "
            f'{{"type": "approve"}}, not {type(decision.value).__name__}'
        )
    return {"type": "respond", "message": decision.value}


def _check(
    given: Sequence[Any], payload: Mapping[str, Any], actions: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse what the middleware would raise about, when the question could be open no more."""
    if len(given) != len(actions):
        raise BadInput(f"the question is about {len(actions)} calls, not {len(given)} decisions")
    for i, (one, action) in enumerate(zip(given, actions, strict=True)):
        kind = one.get("type") if isinstance(one, Mapping) else None
        allowed = _allowed(payload, i, action)
        if kind not in allowed:
            raise BadInput(
                f"the call of {action['name']!r} takes {' or '.join(allowed)}, not {kind!r}"
            )
        if kind == "edit" and not _is_action(one.get("edited_action")):
            raise BadInput('an edit brings "edited_action": {"name": ..., "args": {...}}')
        if kind == "respond" and not isinstance(one.get("message"), str):
            raise BadInput('a response brings "message", a text')


def _is_action(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    return isinstance(value.get("name"), str) and isinstance(value.get("args"), Mapping)
