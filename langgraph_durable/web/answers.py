"""What goes out, as models: with `bodies`, the OpenAPI document is made of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, JsonValue

from langgraph_durable.keys import ApiKey, Issued
from langgraph_durable.redaction import Redaction
from langgraph_durable.runs import (
    Choice,
    Cost,
    Decision,
    Event,
    Mode,
    Question,
    QuestionKind,
    QuestionState,
    Refusal,
    Run,
    Signal,
    StandingRule,
    Status,
    Step,
    StepKind,
    StepState,
    Usage,
)
from langgraph_durable.web.plain import plain, text

T = TypeVar("T")

Plain = Annotated[JsonValue, Field(description="A value in its JSON form (docs/guides/http.md).")]


class Listed(BaseModel, Generic[T]):
    """A page of a list."""

    items: list[T]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class CostOut(BaseModel):
    """What model calls cost, as an exact decimal in text."""

    amount: str = Field(examples=["0.0123"])
    currency: str
    unpriced_tokens: int = Field(description="Tokens of routes without a price; not in `amount`.")


class UsageOut(BaseModel):
    """What a run used, and what replay saved it."""

    model_calls: int
    tool_calls: int
    input_tokens: int
    output_tokens: int
    saved_steps: int
    saved_tokens: int
    cost: CostOut | None = Field(description="Null where no price is known for any of it.")

    @classmethod
    def of(cls, usage: Usage, cost: Cost | None) -> UsageOut:
        """Show what was used."""
        shown = None
        if cost is not None:
            amount, currency = str(cost).split(" ", 1)
            shown = CostOut(amount=amount, currency=currency, unpriced_tokens=cost.unpriced_tokens)
        return cls(
            model_calls=usage.model_calls,
            tool_calls=usage.tool_calls,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            saved_steps=usage.saved_steps,
            saved_tokens=usage.saved_tokens,
            cost=shown,
        )


class ErrorOut(BaseModel):
    """Why a run failed."""

    type: str
    message: str
    reason: str | None = None


class RunOut(BaseModel):
    """A run, as a list shows it."""

    id: str
    tenant: str
    agent: str
    version: str
    mode: Mode
    thread: str
    status: Status
    priority: int
    attempts: int
    max_attempts: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    wake_at: datetime | None = Field(description="Parked: when its timer is over.")
    open_questions: int
    usage: UsageOut
    error: ErrorOut | None
    unwinding: Status | None = Field(
        description="How it ends, or ended, once its compensations have run."
    )

    @classmethod
    def of(cls, run: Run, cost: Cost | None) -> RunOut:
        """Show a run, and what it cost."""
        return cls(**_run_fields(run, cost))


class StepOut(BaseModel):
    """A step of a run."""

    seq: int
    kind: StepKind
    key: str
    status: StepState
    name: str = Field(description="The tool, or the model's route.")
    request: str = Field(description="A short readable form of what was asked for.")
    attempts: int
    seconds: float
    error: str | None
    input_tokens: int
    output_tokens: int
    recorded_at: datetime | None
    undone: str | None = Field(description="Whether it was compensated, and by which step.")

    @classmethod
    def of(cls, step: Step, undone: str | None = None) -> StepOut:
        """Show a step."""
        return cls(
            seq=step.seq,
            kind=step.kind,
            key=text(step.key),
            status=step.state,
            name=text(step.name),
            request=text(step.request),
            attempts=step.attempts,
            seconds=step.seconds,
            error=None if step.error is None else text(step.error),
            input_tokens=step.input_tokens,
            output_tokens=step.output_tokens,
            recorded_at=step.recorded_at,
            undone=None if undone is None else text(undone),
        )


class SignalOut(BaseModel):
    """What somebody outside told a run."""

    id: str
    run_id: str
    event: str
    payload: Plain
    sent_by: str
    sent_at: datetime
    taken_by: str | None = Field(description="The key of the step that took it.")

    @classmethod
    def of(cls, signal: Signal, redaction: Redaction) -> SignalOut:
        """Show a signal, but for its redacted fields."""
        return cls(
            id=text(signal.id),
            run_id=signal.run_id,
            event=text(signal.event),
            payload=plain(redaction.shown(signal.payload)),
            sent_by=text(signal.sent_by),
            sent_at=signal.sent_at,
            taken_by=None if signal.taken_by is None else text(signal.taken_by),
        )


class DecisionOut(BaseModel):
    """The one answer of a question."""

    choice: Choice
    decided_by: str
    reason: str
    arguments: dict[str, JsonValue] | None
    value: Plain


class RefusalOut(BaseModel):
    """An earlier refusal of the same request."""

    by: str
    at: datetime
    reason: str
    run_id: str
    question_id: str
    times: int = Field(description="How often it was refused; the rest is of the last time.")

    @classmethod
    def of(cls, refusal: Refusal) -> RefusalOut:
        """Show a refusal."""
        return cls(
            by=text(refusal.by),
            at=refusal.at,
            reason=text(refusal.reason),
            run_id=refusal.run_id,
            question_id=refusal.question_id,
            times=refusal.times,
        )


class QuestionOut(BaseModel):
    """What a run asks a person: `payload` is exactly what will be done."""

    id: str
    run_id: str
    key: str
    kind: QuestionKind
    tool: str
    payload: Plain
    digest: str
    allowed: list[Choice]
    role: str = Field(description="Who may decide.")
    response_schema: dict[str, JsonValue] | None = Field(
        description="JSON Schema of edited arguments, or of an answer."
    )
    state: QuestionState
    asked_at: datetime | None
    expires_at: datetime | None
    on_expiry: Literal["fail", "reject", "default"]
    decision: DecisionOut | None
    decided_at: datetime | None
    approvals: int = Field(description="How many different people must approve.")
    approved_by: list[str] = Field(description="Who has, so far, where it takes several.")
    person: str | None = Field(description="Whom it was handed to: then only they decide.")
    refused_before: RefusalOut | None = Field(
        description="The last refusal of this very request: tool and arguments."
    )

    @classmethod
    def of(cls, question: Question) -> QuestionOut:
        """Show a question."""
        return cls(
            id=question.id,
            run_id=question.run_id,
            key=text(question.key),
            kind=question.kind,
            tool=text(question.tool),
            payload=plain(question.shown),
            digest=question.digest,
            allowed=list(question.allowed),
            role=question.role or "supervisor",
            response_schema=None if question.schema is None else plain(question.schema),
            state=question.state,
            asked_at=question.asked_at,
            expires_at=question.expires_at,
            on_expiry=question.on_expiry,
            decision=_decision(question.shown_decision),
            decided_at=question.decided_at,
            approvals=question.approvals,
            approved_by=[text(person) for person in question.approved_by],
            person=None if question.person is None else text(question.person),
            refused_before=None
            if question.refused_before is None
            else RefusalOut.of(question.refused_before),
        )


class RunDetail(RunOut):
    """A run with its input, output, steps and open questions."""

    input: Plain
    output: Plain
    steps: list[StepOut]
    questions: list[QuestionOut]

    @classmethod
    def whole(
        cls, run: Run, steps: Iterable[Step], undone: Mapping[str, str], cost: Cost | None
    ) -> RunDetail:
        """Show a run, its steps, which of them were compensated, and what it cost."""
        return cls(
            **_run_fields(run, cost),
            input=plain(run.shown_input),
            output=plain(run.shown_output),
            steps=[StepOut.of(step, undone.get(step.key)) for step in steps],
            questions=[QuestionOut.of(question) for question in run.questions],
        )


class WaitOut(BaseModel):
    """How far a run got: `outcome` says whether to wait on, to ask a person, or to read it."""

    outcome: Literal["ended", "waiting_for_person", "still_running"]
    run: RunDetail


class ApprovedOut(BaseModel):
    """What was approved."""

    run: RunOut
    approved_steps: list[str] = Field(description="Step keys.")
    questions: list[QuestionOut]


class StatusOut(BaseModel):
    """Where a run stands now."""

    id: str
    status: Status


class EventOut(BaseModel):
    """A line of the audit, and the `data` of an event of the stream."""

    id: int
    run_id: str
    type: str
    at: datetime
    actor: str
    data: dict[str, JsonValue]

    @classmethod
    def of(cls, event: Event) -> EventOut:
        """Show an event."""
        return cls(
            id=event.id,
            run_id=event.run_id,
            type=event.type,
            at=event.at,
            actor=text(event.actor),
            data=plain(event.data),
        )


class RuleOut(BaseModel):
    """A rule that a decision carried."""

    id: str
    rule: dict[str, JsonValue] = Field(description="A rule of policy, as data.")
    role: str = Field(description="Who may decide what it answers, and end it.")
    made_by: str
    made_at: datetime
    question_id: str
    run_id: str
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    live: bool

    @classmethod
    def of(cls, rule: StandingRule) -> RuleOut:
        """Show a rule."""
        return cls(
            id=rule.id,
            rule=plain(rule.data),
            role=rule.role or "supervisor",
            made_by=text(rule.made_by),
            made_at=rule.made_at,
            question_id=rule.question_id,
            run_id=rule.run_id,
            expires_at=rule.expires_at,
            revoked_at=rule.revoked_at,
            revoked_by=None if rule.revoked_by is None else text(rule.revoked_by),
            live=rule.is_live,
        )


class KeyOut(BaseModel):
    """A key, without its secret."""

    id: str
    name: str
    roles: list[str]
    scopes: list[str]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    live: bool

    @classmethod
    def of(cls, key: ApiKey) -> KeyOut:
        """Show a key."""
        return cls(**_key_fields(key))


class IssuedOut(KeyOut):
    """A new key: the secret is shown this once."""

    secret: str

    @classmethod
    def made(cls, issued: Issued) -> IssuedOut:
        """Show a new key."""
        return cls(**_key_fields(issued.key), secret=issued.secret)


def _run_fields(run: Run, cost: Cost | None) -> dict[str, Any]:
    return {
        "id": run.id,
        "tenant": run.tenant,
        "agent": run.agent,
        "version": run.version,
        "mode": run.mode,
        "thread": run.thread,
        "status": run.status,
        "priority": run.priority,
        "attempts": run.attempts,
        "max_attempts": run.max_attempts,
        "unwinding": run.unwinding,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "wake_at": run.wake_at,
        "open_questions": len(run.questions),
        "usage": UsageOut.of(run.usage, cost),
        "error": _error(run.error),
    }


def _error(error: Mapping[str, Any] | None) -> ErrorOut | None:
    if not error:
        return None
    reason = error.get("reason")
    return ErrorOut(
        type=text(str(error.get("type", "Error"))),
        message=text(str(error.get("message", ""))),
        reason=None if reason is None else text(str(reason)),
    )


def _decision(decision: Decision | None) -> DecisionOut | None:
    if decision is None:
        return None
    return DecisionOut(
        choice=decision.choice,
        decided_by=text(decision.by),
        reason=text(decision.reason),
        arguments=None if decision.arguments is None else plain(decision.arguments),
        value=plain(decision.value),
    )


def _key_fields(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "roles": sorted(key.roles),
        "scopes": sorted(key.scopes),
        "created_at": key.created_at,
        "created_by": text(key.created_by),
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "live": key.is_live,
    }
