"""Put a question, and read its answer.

Putting only marks the pass; the worker writes the questions of a superstep together with
the run's new status, when every step in flight has been recorded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from langgraph_durable.errors import Parked, QuestionExpired
from langgraph_durable.runs import Question, QuestionState, Refused

if TYPE_CHECKING:
    from langgraph_durable.context import RunContext

EXPIRED_BY = "nobody"


def put(ctx: RunContext, question: Question) -> NoReturn:
    """Mark the pass as parked on a question, and end it."""
    named = replace(question, id=str(ctx.services.chance.uuid()))
    ctx.state.asked.setdefault(question.key, named)
    raise Parked(f"a question was put: {question.key}")


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
