"""What a run is made of: its status, lease, steps, questions, decisions and outcomes.

All of it is data. Rows become these in the store; nothing here knows a database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from langgraph_durable.errors import BadInput

MAX_NAME_CHARACTERS = 200


def check_name(what: str, value: object) -> None:
    """Refuse a tenant, thread, key or other name that people could not read.

    Raises:
        BadInput: it is empty, too long, not text or not printable.
    """
    if (
        not isinstance(value, str)
        or not value
        or len(value) > MAX_NAME_CHARACTERS
        or not value.isprintable()
    ):
        raise BadInput(
            f"{what} must be printable text of 1 to {MAX_NAME_CHARACTERS} characters, not {value!r}"
        )


class Status(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING_HUMAN = "waiting_human"
    SLEEPING = "sleeping"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended (an operator may still retry a failed one)."""
        return self in FINAL


S = Status

FINAL: frozenset[Status] = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})

#: Which status may follow which. The store puts `sources(target)` into its WHERE.
NEXT: Mapping[Status, frozenset[Status]] = {
    S.QUEUED: frozenset({S.RUNNING, S.CANCELLED, S.FAILED}),
    S.RUNNING: frozenset(
        {S.RUNNING, S.QUEUED, S.WAITING_HUMAN, S.SLEEPING, S.CANCELLING, S.SUCCEEDED, S.FAILED}
    ),
    S.WAITING_HUMAN: frozenset({S.QUEUED, S.CANCELLED}),
    S.SLEEPING: frozenset({S.QUEUED, S.CANCELLED}),
    S.CANCELLING: frozenset({S.CANCELLING, S.CANCELLED}),
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset({S.QUEUED}),
    S.CANCELLED: frozenset(),
}


def sources(target: Status) -> frozenset[Status]:
    """Return the statuses that a run may leave for `target`."""
    return frozenset(status for status, nexts in NEXT.items() if target in nexts)


Mode = Literal["graph", "steps"]


class Effect(StrEnum):
    """What a tool does to the world."""

    READ = "read"  # may run again
    IDEMPOTENT = "idempotent"  # takes an idempotency key: a repeat answers with the first result
    ONCE = "once"  # cannot be repeated safely

    @property
    def is_write(self) -> bool:
        """Whether the tool changes anything."""
        return self is not Effect.READ


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failing step or run is tried, and how long between.

    Waits grow from `first_seconds` by `factor` up to `limit_seconds`, each with full
    jitter. `on` names the errors worth another try.
    """

    attempts: int = 3
    first_seconds: float = 0.5
    factor: float = 2.0
    limit_seconds: float = 30.0
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        """Refuse numbers that could never make a try."""
        if self.attempts < 1 or self.first_seconds < 0 or self.limit_seconds < 0 or self.factor < 1:
            raise ValueError("Retry needs attempts >= 1, seconds >= 0 and factor >= 1")


@dataclass(frozen=True, slots=True)
class Usage:
    """What models were asked for, and what replay saved.

    `saved_*` counts answers that came from the journal in passes that settled; a pass
    that was killed counts nothing, so it is a lower bound.
    """

    model_calls: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    saved_steps: int = 0
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One submitted execution of an agent: a row."""

    id: str
    tenant: str
    agent: str
    version: str
    mode: Mode
    thread: str
    status: Status
    priority: int
    input: Any
    output: Any
    error: Mapping[str, Any] | None  # {"type", "message", "reason"}
    attempts: int
    max_attempts: int
    epoch: int
    worker: str | None
    lease_until: datetime | None
    run_after: datetime
    deadline_seconds: float | None
    idempotency_key: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    questions: Sequence[Question] = ()
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Lease:
    """Time-limited ownership of a run: every write of a worker names (run_id, epoch)."""

    run_id: str
    epoch: int
    worker: str


class StepState(StrEnum):
    """How far a step got."""

    RECORDED = "recorded"  # its value answers every later pass
    INTENT = "intent"  # a write was about to be made; its outcome is not recorded
    FAILED = "failed"  # the last try failed; not an answer, the call is made again
    ASKING = "asking"  # waits for a person


StepKind = Literal["llm", "tool", "once", "ask", "interrupt", "now", "random", "uuid", "sleep"]


@dataclass(frozen=True, slots=True)
class Step:
    """One journaled call.

    `value` is the encoded answer (`values.encode`), `fingerprint` the digest of the
    request, `name` the tool or model route, `place` where in the graph it was made.
    """

    key: str
    kind: StepKind
    fingerprint: str = ""
    name: str = ""
    state: StepState = StepState.RECORDED
    value: str | None = None
    place: str = ""
    request: str = ""  # a short readable form of the request, for messages and people
    error: str | None = None
    attempts: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    approval_id: str | None = None
    seq: int = 0  # order of recording in the run; given by the store
    epoch: int = 0  # the claim under which it was recorded
    seconds: float = 0.0  # how long the call took, by the worker's monotonic clock
    recorded_at: datetime | None = None


class QuestionState(StrEnum):
    """Where a question stands."""

    OPEN = "open"
    DECIDED = "decided"
    EXPIRED = "expired"
    CLOSED = "closed"  # the run was cancelled, or the question was asked again with other arguments


QuestionKind = Literal["tool", "ask", "interrupt", "breakpoint", "outcome"]
Choice = Literal["approve", "reject", "edit", "respond"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The one answer that a question gets."""

    choice: Choice
    by: str
    reason: str = ""
    arguments: Mapping[str, Any] | None = None  # edit: what is executed instead
    value: Any = None  # respond: the answer

    @classmethod
    def approve(cls, by: str, reason: str = "") -> Decision:
        """Let the call go ahead as shown."""
        return cls("approve", by, reason)

    @classmethod
    def reject(cls, by: str, reason: str = "") -> Decision:
        """Refuse the call; the agent continues with a refused result."""
        return cls("reject", by, reason)

    @classmethod
    def edit(cls, by: str, arguments: Mapping[str, Any], reason: str = "") -> Decision:
        """Let the call go ahead with other arguments."""
        return cls("edit", by, reason, arguments=dict(arguments))

    @classmethod
    def respond(cls, by: str, value: Any, reason: str = "") -> Decision:
        """Answer with a value."""
        return cls("respond", by, reason, value=value)


@dataclass(frozen=True, slots=True)
class Question:
    """What a run asks a person.

    `key` is the step key, or for LangGraph's `interrupt()` its stable path; `payload`
    is exactly what the person is shown and `digest` its digest.
    """

    id: str
    key: str
    kind: QuestionKind
    payload: Any
    digest: str
    tool: str = ""
    allowed: tuple[Choice, ...] = ("approve", "reject")
    role: str | None = None
    schema: Mapping[str, Any] | None = None  # JSON Schema of a response, or of edited arguments
    interrupt_id: str | None = None
    expires_in_seconds: float | None = None
    on_expiry: Literal["fail", "reject", "default"] = "reject"
    default: Any = None
    # what the store knows about it
    run_id: str = ""
    tenant: str = ""
    state: QuestionState = QuestionState.OPEN
    asked_at: datetime | None = None
    expires_at: datetime | None = None
    decision: Decision | None = None
    decided_at: datetime | None = None
    approval_id: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """What `ctx.tool` returns instead of a result when a person refused the call.

    `expired` tells a question that nobody answered in time from a refusal.
    """

    reason: str
    by: str
    expired: bool = False

    def __str__(self) -> str:
        """Say it in a sentence, as the text of a tool message."""
        if self.expired:
            return "The call was not made: nobody approved it in time."
        because = f": {self.reason}" if self.reason else "."
        return f"The call was refused by {self.by}{because}"


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the audit: a fact in the past tense."""

    id: int
    run_id: str
    tenant: str
    type: str
    at: datetime
    actor: str
    data: Mapping[str, Any]


# --- how a pass ends -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many steps the journal answered in a pass, and the tokens that this saved."""

    steps: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """The agent returned; `output` is encoded."""

    output: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The run waits for people: `questions` are put and the status changes, together."""

    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Slept:
    """The run waits for a time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Retried:
    """The pass ended in an error that another attempt may cure."""

    error: Mapping[str, Any]
    progressed: bool  # a step was recorded in this pass: the budget of attempts starts afresh


@dataclass(frozen=True, slots=True)
class Broke:
    """The pass ended in an error that no attempt can cure."""

    error: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Drained:
    """The worker stops: the run goes back to the queue and costs no attempt."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A cancel was asked for, and what was in flight has ended."""


Outcome = Done | Asked | Slept | Retried | Broke | Drained | Cancelled
