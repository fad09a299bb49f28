"""What comes in and what goes out, as models: the OpenAPI document is made of these.

Unknown fields are refused, so that a `tenant` or a `decided_by` in a body is an error and
not a silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from langgraph_durable.keys import ApiKey, Issued
from langgraph_durable.runs import (
    Choice,
    Decision,
    Event,
    Mode,
    Question,
    QuestionKind,
    QuestionState,
    Run,
    Status,
    Step,
    StepKind,
    StepState,
)
from langgraph_durable.web.plain import plain, text

T = TypeVar("T")

MAX_REASON_CHARACTERS = 2_000
MAX_PAGE = 200

Name = Annotated[str, Field(min_length=1, max_length=200)]
Reason = Annotated[str, Field(max_length=MAX_REASON_CHARACTERS)]
Seconds = Annotated[float, Field(gt=0, le=3.15e9)]


class Body(BaseModel):
    """A request: unknown fields are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


# --- in --------------------------------------------------------------------------------


class SubmitBody(Body):
    """A run to submit. Its tenant is the key's."""

    agent: Name
    input: JsonValue = None
    version: Name | None = None
    thread: Name | None = Field(
        default=None, description="A conversation of the tenant and agent; by default its own."
    )
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)
    max_attempts: int | None = Field(default=None, ge=1, le=1_000)


class ToolCallRef(BaseModel):
    """AgentScope's tool call: its id is a step's key, or a question's id."""

    model_config = ConfigDict(extra="allow")

    id: Name
    input: JsonValue = Field(
        default=None, description="Arguments, as an object or as JSON text; changed: an edit."
    )


class ConfirmResult(Body):
    """AgentScope's answer to one tool call."""

    confirmed: bool
    tool_call_id: Name | None = None
    tool_call: ToolCallRef | None = None
    rules: list[JsonValue] | None = Field(
        default=None, description="Not taken: policy is set where the runtime is built."
    )

    @model_validator(mode="after")
    def _one_name(self) -> ConfirmResult:
        if (self.tool_call_id is None) == (self.tool_call is None):
            raise ValueError("give tool_call_id or tool_call")
        if self.rules:
            raise ValueError("rules can't come with a decision here; set policy at the runtime")
        return self

    @property
    def call_id(self) -> str:
        """The step key or question id that is answered."""
        return self.tool_call.id if self.tool_call is not None else str(self.tool_call_id)

    @property
    def arguments(self) -> Any:
        """The arguments as they were sent back, or None."""
        given = None if self.tool_call is None else self.tool_call.input
        if not isinstance(given, str):
            return given
        try:
            return json.loads(given)
        except (ValueError, RecursionError):
            return given


class ConfirmBody(Body):
    """AgentScope's event: what a person answered, sent to where the run was started."""

    type: Literal["USER_CONFIRM_RESULT"]
    reply_id: Name = Field(description="The run's id.")
    confirm_results: list[ConfirmResult] = Field(min_length=1, max_length=100)
    id: str | None = Field(default=None, max_length=200)
    created_at: str | None = Field(default=None, max_length=100)
    metadata: dict[str, JsonValue] | None = None


class ApproveBody(Body):
    """Which questions of a run to approve; without a list all open ones."""

    questions: list[Name] | None = Field(default=None, min_length=1, max_length=100)
    reason: Reason = ""


class DecisionBody(Body):
    """The answer to a question. Who made it is the key's name."""

    choice: Choice
    reason: Reason = ""
    arguments: dict[str, JsonValue] | None = Field(
        default=None, description="Only with `edit`: what is executed instead."
    )
    value: JsonValue = Field(default=None, description="Only with `respond`: the answer.")

    @model_validator(mode="after")
    def _fits_choice(self) -> DecisionBody:
        brought = self.model_fields_set & {"arguments", "value"}
        wanted = {"edit": {"arguments"}, "respond": {"value"}}.get(self.choice, set())
        if brought != wanted or (self.choice == "edit" and self.arguments is None):
            raise ValueError(
                f"{self.choice} takes {' and '.join(wanted) or 'neither arguments nor value'}"
            )
        return self

    def decision(self, by: str) -> Decision:
        """Return the decision that this says."""
        return Decision(self.choice, by, self.reason, self.arguments, self.value)


class KeyBody(Body):
    """A key to make, for the tenant of the key that makes it."""

    name: Name
    roles: list[Name] = Field(min_length=1, max_length=20)
    scopes: list[Name] = Field(default=[], max_length=100)
    expires_in_seconds: Seconds | None = None


class RotateBody(Body):
    """How long the old key still works."""

    grace_seconds: float = Field(default=0.0, ge=0, le=3.15e9)


class RunsQuery(BaseModel):
    """Which runs to list."""

    model_config = ConfigDict(extra="forbid")

    status: Status | None = None
    agent: str | None = Field(default=None, max_length=200)
    thread: str | None = Field(default=None, max_length=200)
    limit: int = Field(default=50, ge=1, le=MAX_PAGE)
    cursor: str | None = Field(default=None, max_length=300, description="`next` of a page.")


class QuestionsQuery(BaseModel):
    """Which questions to list."""

    model_config = ConfigDict(extra="forbid")

    state: QuestionState | Literal["all"] = QuestionState.OPEN
    run_id: str | None = Field(default=None, max_length=300)
    limit: int = Field(default=50, ge=1, le=MAX_PAGE)
    cursor: str | None = Field(default=None, max_length=300, description="`next` of a page.")


class WaitQuery(BaseModel):
    """How long to wait."""

    model_config = ConfigDict(extra="forbid")

    timeout_seconds: float = Field(default=30.0, ge=0, le=60, allow_inf_nan=False)


# --- out -------------------------------------------------------------------------------

Plain = Annotated[JsonValue, Field(description="A value in its JSON form (docs/guides/http.md).")]


class Listed(BaseModel, Generic[T]):
    """A page of a list."""

    items: list[T]
    next: str | None = Field(description="The `cursor` of the next page; null on the last.")


class UsageOut(BaseModel):
    """What a run used, and what replay saved it."""

    model_calls: int
    tool_calls: int
    input_tokens: int
    output_tokens: int
    saved_steps: int
    saved_tokens: int


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
    open_questions: int
    usage: UsageOut
    error: ErrorOut | None

    @classmethod
    def of(cls, run: Run) -> RunOut:
        """Show a run."""
        return cls(**_run_fields(run))


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

    @classmethod
    def of(cls, step: Step) -> StepOut:
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
        )


class DecisionOut(BaseModel):
    """The one answer of a question."""

    choice: Choice
    decided_by: str
    reason: str
    arguments: dict[str, JsonValue] | None
    value: Plain


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

    @classmethod
    def of(cls, question: Question) -> QuestionOut:
        """Show a question."""
        return cls(
            id=question.id,
            run_id=question.run_id,
            key=text(question.key),
            kind=question.kind,
            tool=text(question.tool),
            payload=plain(question.payload),
            digest=question.digest,
            allowed=list(question.allowed),
            role=question.role or "supervisor",
            response_schema=None if question.schema is None else plain(question.schema),
            state=question.state,
            asked_at=question.asked_at,
            expires_at=question.expires_at,
            on_expiry=question.on_expiry,
            decision=_decision(question.decision),
            decided_at=question.decided_at,
        )


class RunDetail(RunOut):
    """A run with its input, output, steps and open questions."""

    input: Plain
    output: Plain
    steps: list[StepOut]
    questions: list[QuestionOut]

    @classmethod
    def whole(cls, run: Run, steps: Iterable[Step]) -> RunDetail:
        """Show a run and its steps."""
        return cls(
            **_run_fields(run),
            input=plain(run.input),
            output=plain(run.output),
            steps=[StepOut.of(step) for step in steps],
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


def _run_fields(run: Run) -> dict[str, Any]:
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
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "open_questions": len(run.questions),
        "usage": UsageOut.model_validate(run.usage, from_attributes=True),
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
