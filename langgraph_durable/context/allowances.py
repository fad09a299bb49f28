"""What a run and its tenant may use of models and tools before a person is asked.

Looked at between steps: a call that has begun is never cut off. A run counts what its own
journal has; what other runs of the tenant used is known from the claim, so runs at the same
time may together go over by what each does in one pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from langgraph_durable.context.questioning import put
from langgraph_durable.errors import OverBudget
from langgraph_durable.runs import Budget, Price, Question, QuestionState, Step, StepState
from langgraph_durable.values import fingerprint

if TYPE_CHECKING:
    from langgraph_durable.context import RunContext

Scope = Literal["run", "tenant"]
AMOUNT = {"type": "number", "exclusiveMinimum": 0}
_COUNTED_BY: Mapping[str, Collection[str]] = {
    "llm": ("tokens", "model_calls", "cost"),
    "tool": ("tool_calls",),
}


@dataclass(frozen=True, slots=True)
class Allowance:
    """A budget, what others have used of it, and what people have added to it."""

    scope: Scope
    budget: Budget
    used: Mapping[str, float] = field(default_factory=dict)  # by others, before this pass
    raises: Mapping[str, tuple[float, int]] = field(default_factory=dict)  # by what: sum, count


def check_allowances(ctx: RunContext, kind: str) -> None:
    """Let a model or tool call begin, or ask a person to raise a budget that is used up.

    Raises:
        OverBudget: a person refused to raise it.
    """
    for allowance in ctx.services.allowances:
        for what, limit in allowance.budget.limits.items():
            if what in _COUNTED_BY.get(kind, ()):
                _check(ctx, allowance, what, limit)


def _check(ctx: RunContext, allowance: Allowance, what: str, limit: float) -> None:
    used = allowance.used.get(what, 0.0) + usage_of(ctx.journal.steps(), ctx.services.prices)[what]
    raised, times = allowance.raises.get(what, (0.0, 0))
    allowed = limit + raised
    while used >= allowed:
        question = _question(ctx, allowance, what, limit, times, used)
        answer = ctx.journal.answer(question.key, question.digest)
        if answer is None or answer.state is not QuestionState.DECIDED:
            put(ctx, question)
        added = added_by(answer, limit)
        if added is None:
            refused = OverBudget(allowance.scope, what, _who(answer))
            ctx.state.broken = ctx.state.broken or refused  # no `except` hides it
            raise refused
        allowed, times = allowed + added, times + 1


def _who(question: Question) -> str:
    return question.decision.by if question.decision else "nobody"


def added_by(question: Question, limit: float) -> float | None:
    """Return what a decision adds to a budget, or None where it was refused."""
    decision = question.decision
    if decision is None or decision.choice == "reject":
        return None
    return float(decision.value) if decision.choice == "respond" else limit


def _question(
    ctx: RunContext, allowance: Allowance, what: str, limit: float, times: int, used: float
) -> Question:
    asked: dict[str, Any] = {"budget": allowance.scope, "of": what, "limit": limit, "raised": times}
    return Question(
        id="",
        key=f"budget:{allowance.scope}:{what}:{times + 1}",
        kind="budget",
        tool=f"budget.{allowance.scope}.{what}",
        # what was used may differ from pass to pass; the question is the same
        digest=fingerprint(asked, types=ctx.services.types, where="a budget"),
        payload={
            "question": "The budget is used up. approve: raise it by the same again; "
            "respond: raise it by this much; reject: end the run.",
            **asked,
            "used": used,
        },
        allowed=("approve", "respond", "reject"),
        schema=AMOUNT,
    )


def usage_of(steps: Collection[Step], prices: Mapping[str, Price]) -> dict[str, float]:
    """Return what steps used, by the names of a budget's limits."""
    done = [step for step in steps if step.state is StepState.RECORDED]
    models = [step for step in done if step.kind == "llm"]
    return {
        "tokens": float(sum(step.input_tokens + step.output_tokens for step in models)),
        "model_calls": float(len(models)),
        "tool_calls": float(sum(step.kind == "tool" for step in done)),
        "cost": float(sum((_cost(step, prices) for step in models), Decimal(0))),
    }


def _cost(step: Step, prices: Mapping[str, Price]) -> Decimal:
    price = prices.get(step.name)
    return price.of(step.input_tokens, step.output_tokens) if price else Decimal(0)
