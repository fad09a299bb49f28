"""Put a question, and read its answer.

Putting only marks the pass; the worker writes the questions of a superstep together with
the run's new status, when every step in flight has been recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import jsonschema

from langgraph_durable.errors import BadInput, Parked, QuestionExpired
from langgraph_durable.policy import check_asking
from langgraph_durable.runs import Choice, Question, QuestionState, Refused, Step, check_name
from langgraph_durable.values import fingerprint

if TYPE_CHECKING:
    from langgraph_durable.context import RunContext

EXPIRED_BY = "nobody"


def put(ctx: RunContext, question: Question) -> NoReturn:
    """Mark the pass as parked on a question, and end the task that puts it."""
    id_ = str(ctx.services.chance.uuid())
    named = replace(question, id=id_, redaction=ctx.services.redaction)
    ctx.state.asked.setdefault(question.key, named)
    raise ctx.state.end(ctx.here(), Parked(f"a question was put: {question.key}"))


def did_it_happen(
    ctx: RunContext,
    known: Step,
    shown: Mapping[str, Any],
    *,
    tool: str = "",
    role: str | None = None,
) -> tuple[bool, Any]:
    """Ask about a call that can't be repeated, and whose worker died while it was made.

    Returns whether it happened, and its result. Each try is asked about by itself: that an
    earlier one did not happen says nothing about the next.
    """
    payload = {
        "question": "Did this call happen? A worker died while it was being made. "
        "approve: it happened; respond: it happened, with this result; "
        "reject: it did not happen, make it now.",
        **shown,
    }
    key = f"{known.key}?outcome{known.attempts}"
    digest = fingerprint(payload, types=ctx.services.types, where=f"question {key!r}")
    question = ctx.journal.answer(key, digest)
    if question is None:
        put(
            ctx,
            Question(
                id="",
                key=key,
                kind="outcome",
                tool=tool,
                payload=payload,
                digest=digest,
                allowed=("approve", "respond", "reject"),
                role=role,
            ),
        )
    decision = question.decision
    return decision is None or decision.choice != "reject", decision.value if decision else None


def check_question(asked: Question) -> None:
    """Refuse a question that nobody could answer, before anybody sees it.

    Raises:
        BadInput: it allows no known choice, its schema is no JSON schema, or what it says of
            people and times can't be.
    """
    what = f"question {asked.key!r}"
    if asked.on_expiry not in ("fail", "reject", "default"):
        raise BadInput(
            f"{what}: on_expiry is 'fail', 'reject' or 'default', not {asked.on_expiry!r}"
        )
    if not asked.allowed or not set(asked.allowed) <= set(get_args(Choice)):
        raise BadInput(f"{what}: choices are of {get_args(Choice)}, not {asked.allowed!r}")
    for part in ("role", "escalate_to"):
        if getattr(asked, part) is not None:
            check_name(f"{what}: {part}", getattr(asked, part))
    check_asking(
        what,
        approvals=asked.approvals,
        expires_in_seconds=asked.expires_in_seconds,
        remind_after_seconds=asked.remind_after_seconds,
        escalate_after_seconds=asked.escalate_after_seconds,
        escalate_to=asked.escalate_to,
    )
    _check_schema(what, asked.schema)


def _check_schema(what: str, schema: Mapping[str, Any] | None) -> None:
    if schema is None:
        return
    try:
        json.dumps(schema)
        jsonschema.validators.validator_for(dict(schema)).check_schema(dict(schema))
    except (jsonschema.SchemaError, TypeError, ValueError) as error:
        said = getattr(error, "message", str(error))
        raise BadInput(f"{what}: its schema is no JSON schema: {said}") from error


def answered(question: Question) -> Any:
    """Return what the answer of an `ask` means to the code that asked."""
    if question.state is QuestionState.EXPIRED:
        return expired(question)
    decision = question.decision
    if decision is None or decision.choice == "approve":
        return True
    if decision.choice == "reject":
        return Refused(decision.reason, decision.by)
    return decision.arguments if decision.choice == "edit" else decision.value


def expired(question: Question) -> Any:
    """Return what a question that nobody answered in time comes to, by its declared path.

    Raises:
        QuestionExpired: it was declared to fail the run.
    """
    if question.on_expiry == "default":
        return question.default
    if question.on_expiry == "reject":
        return Refused("", EXPIRED_BY, expired=True)
    raise QuestionExpired(question.key)
