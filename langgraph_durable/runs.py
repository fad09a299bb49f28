"""What a run is made of: its status, lease, steps, questions, decisions and outcomes.

All of it is data. Rows become these in the store; nothing here knows a database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from operator import attrgetter
from typing import Any, Literal, Protocol
from urllib.parse import quote

from langgraph_durable.errors import BadInput
from langgraph_durable.redaction import Redaction

MAX_NAME_CHARACTERS = 200
DEFAULT_ROLE = "supervisor"  # who decides where no rule names a role


def thread_name(tenant: str, agent: str, thread: str) -> str:
    """Return a thread's id in LangGraph's tables.

    It names tenant and agent, so that a thread id that belongs to another tenant, or to
    another graph, is simply another thread. A slash in a name is escaped: otherwise thread
    "c/d" of agent "b" would be thread "d" of agent "c" of a tenant called "a/b".
    """
    return "/".join(quote(name, safe=" :") for name in (tenant, agent, thread))


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

#: Left as a row, holding no worker.
PARKED: frozenset[Status] = frozenset({S.WAITING_HUMAN, S.SLEEPING})

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


#: The same for a run that is being unwound: it is never driven forward, and its end is decided.
UNWINDING: Mapping[Status, frozenset[Status]] = {
    S.QUEUED: frozenset({S.RUNNING, S.CANCELLING}),
    S.RUNNING: frozenset({S.RUNNING, S.QUEUED, S.WAITING_HUMAN, S.FAILED}),
    S.CANCELLING: frozenset({S.CANCELLING, S.QUEUED, S.WAITING_HUMAN, S.CANCELLED}),
    S.WAITING_HUMAN: frozenset({S.QUEUED}),
}


def sources(target: Status, table: Mapping[Status, frozenset[Status]] = NEXT) -> frozenset[Status]:
    """Return the statuses that a run may leave for `target`."""
    return frozenset(status for status, nexts in table.items() if target in nexts)


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
    # model route -> (tokens read, tokens written)
    by_route: Mapping[str, tuple[int, int]] = field(default_factory=dict)


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
    wake_at: datetime | None = None  # parked: when it goes on without anybody's doing
    questions: Sequence[Question] = ()
    usage: Usage = field(default_factory=Usage)
    unwinding: Status | None = None  # how it ends, or ended, once its compensations have run
    redaction: Redaction = field(default=Redaction(), repr=False, compare=False)

    @property
    def shown_input(self) -> Any:
        """The input as people see it: redacted fields have a marker."""
        return self.redaction.shown(self.input)

    @property
    def shown_output(self) -> Any:
        """The output as people see it."""
        return self.redaction.shown(self.output)


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
    WAITING = "waiting"  # waits for an event; its value is when the time is over


StepKind = Literal[
    "llm",
    "tool",
    "once",
    "ask",
    "interrupt",
    "now",
    "random",
    "uuid",
    "sleep",
    "emit",
    "wait",
    "patch",
]


@dataclass(frozen=True, slots=True)
class Emitted:
    """A message that is committed with its step, and delivered afterwards."""

    key: str
    topic: str
    tenant: str
    payload: Mapping[str, Any]


#: What the key of a compensating step adds to the key of the step that it undoes.
COMPENSATE = "compensate:"

#: What the key of "did the call that is to be undone happen?" adds to that.
HAPPENED = "?happened"


@dataclass(frozen=True, slots=True)
class Compensation:
    """The call that undoes a step: a tool of the hub, and the arguments it is called with.

    `arguments` may be a function of the step's result, or of its result and its arguments. It
    is asked once, when the result is known; what is stored with the step is what it returned.
    """

    tool: str
    arguments: (
        Mapping[str, Any]
        | Callable[[Any], Mapping[str, Any]]
        | Callable[[Any, Any], Mapping[str, Any]]
    )


@dataclass(frozen=True, slots=True)
class Signal:
    """What somebody outside tells a run: kept until a step of the run takes it.

    `event` is what happened, in the sender's words; `id` is the sender's, and makes a repeat
    of the same signal change nothing.
    """

    id: str
    run_id: str
    event: str
    payload: Any
    sent_by: str
    sent_at: datetime
    taken_by: str | None = None  # the key of the step that took it
    number: int = 0  # grows in the order of arrival


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
    compensation: str | None = None  # the call that undoes it, encoded: tool and arguments
    emits: tuple[Emitted, ...] = ()  # on the way to the outbox, never read back
    takes: int | None = None  # the number of the signal that it takes; never read back

    def numbered(self, seq: int, epoch: int) -> Step:
        """Return this step in its place in the journal (`replace` takes three times as long)."""
        values: tuple[Any, ...] = (*_before_seq(self), seq, epoch, *_behind_epoch(self))
        return Step(*values)


_names = [field.name for field in fields(Step)]
_before_seq = attrgetter(*_names[: _names.index("seq")])
_behind_epoch = attrgetter(*_names[_names.index("epoch") + 1 :])


def is_settled_patch(step: Step) -> bool:
    """Whether a step says that the run took the new side of a change: its test may go."""
    return step.kind == "patch" and step.value == "true"


class QuestionState(StrEnum):
    """Where a question stands."""

    OPEN = "open"
    DECIDED = "decided"
    EXPIRED = "expired"
    CLOSED = "closed"  # the run was cancelled, or the question was asked again with other arguments


QuestionKind = Literal[
    "tool", "ask", "interrupt", "breakpoint", "outcome", "budget", "compensation", "review"
]
Choice = Literal["approve", "reject", "edit", "respond"]


class SaysRule(Protocol):
    """A rule of policy: `langgraph_durable.Rule`."""

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """The one answer that a question gets.

    `rules` hold from now on, for the tenant of the question and its tool, until a time or for
    ever: "allow refunds up to 5,000 cents until Friday".
    """

    choice: Choice
    by: str
    reason: str = ""
    arguments: Mapping[str, Any] | None = None  # edit: what is executed instead
    value: Any = None  # respond: the answer
    rules: Sequence[Mapping[str, Any]] = ()  # as plain data
    until: datetime | None = None  # when the rules end

    def __post_init__(self) -> None:
        """Keep rules as plain data, which can be stored; refuse an end without them."""
        given = [rule if isinstance(rule, Mapping) else rule.to_data() for rule in self.rules]
        object.__setattr__(self, "rules", tuple(given))
        if self.until is not None and (not given or self.until.tzinfo is None):
            raise BadInput("a decision's `until` is an aware time, and ends the rules it carries")

    @classmethod
    def approve(
        cls,
        by: str,
        reason: str = "",
        *,
        rules: Sequence[SaysRule | Mapping[str, Any]] = (),
        until: datetime | None = None,
    ) -> Decision:
        """Let the call go ahead as shown."""
        return cls("approve", by, reason, rules=tuple(rules), until=until)  # type: ignore[arg-type]

    @classmethod
    def reject(
        cls,
        by: str,
        reason: str = "",
        *,
        rules: Sequence[SaysRule | Mapping[str, Any]] = (),
        until: datetime | None = None,
    ) -> Decision:
        """Refuse the call; the agent continues with a refused result."""
        return cls("reject", by, reason, rules=tuple(rules), until=until)  # type: ignore[arg-type]

    @classmethod
    def edit(
        cls,
        by: str,
        arguments: Mapping[str, Any],
        reason: str = "",
        *,
        rules: Sequence[SaysRule | Mapping[str, Any]] = (),
        until: datetime | None = None,
    ) -> Decision:
        """Let the call go ahead with other arguments."""
        given: Any = tuple(rules)
        return cls("edit", by, reason, arguments=dict(arguments), rules=given, until=until)

    @classmethod
    def respond(cls, by: str, value: Any, reason: str = "") -> Decision:
        """Answer with a value."""
        return cls("respond", by, reason, value=value)


@dataclass(frozen=True, slots=True)
class Refusal:
    """That a person refused the very same request before: tool and arguments of one tenant."""

    by: str
    at: datetime
    reason: str
    run_id: str
    question_id: str
    times: int = 1  # how often it was refused; the rest is of the last time


@dataclass(frozen=True, slots=True)
class Question:
    """What a run asks a person.

    `key` is the step key, or for LangGraph's `interrupt()` its stable path; `payload`
    is exactly what is asked about and `digest` its digest; `shown` is the payload without
    the fields that are redacted.
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
    approvals: int = 1  # how many different people must approve
    remind_after_seconds: float | None = None  # and again after as long
    escalate_after_seconds: float | None = None
    escalate_to: str | None = None  # the role that may decide then
    # what the store knows about it
    run_id: str = ""
    tenant: str = ""
    state: QuestionState = QuestionState.OPEN
    asked_at: datetime | None = None
    expires_at: datetime | None = None
    decision: Decision | None = None
    decided_at: datetime | None = None
    approval_id: str | None = None
    approved_by: tuple[str, ...] = ()  # so far, while more than one person must approve
    person: str | None = None  # whom it was handed to
    refused_before: Refusal | None = None  # the last refusal of this very request
    redaction: Redaction = field(default=Redaction(), repr=False, compare=False)

    @property
    def shown(self) -> Any:
        """The payload as people see it: redacted fields have a marker."""
        return self.redaction.shown(self.payload, self.schema)

    @property
    def shown_decision(self) -> Decision | None:
        """The decision as people see it."""
        if self.decision is None:
            return None
        arguments = self.redaction.shown(self.decision.arguments, self.schema)
        value = self.redaction.shown(self.decision.value, self.schema)
        return replace(self.decision, arguments=arguments, value=value)


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


@dataclass(frozen=True, slots=True)
class StandingRule:
    """A rule that a decision carried: who made it, on which question, and until when.

    `role` and `approvals` are those of that question: the rule answers only what its maker
    could have answered.
    """

    id: str
    tenant: str
    data: Mapping[str, Any]
    made_by: str
    made_at: datetime
    question_id: str
    run_id: str
    role: str | None = None
    approvals: int = 1
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str | None = None
    is_live: bool = True


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be used before a person is asked; None is no limit.

    `cost` is counted by `Durable(prices=...)`. `window_seconds` is for a tenant's: what its
    runs used in the time before now.
    """

    tokens: int | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    cost: float | None = None
    window_seconds: float = 86_400.0

    def __post_init__(self) -> None:
        """Refuse a budget that limits nothing, or that nothing could be done under."""
        given = self.limits
        if not given or any(not limit > 0 for limit in given.values()) or self.window_seconds <= 0:
            raise BadInput(
                "a Budget needs a limit above 0: tokens, model_calls, tool_calls or cost"
            )

    @property
    def limits(self) -> Mapping[str, float]:
        """The limits that are set, by what they limit."""
        named = {
            "tokens": self.tokens,
            "model_calls": self.model_calls,
            "tool_calls": self.tool_calls,
            "cost": self.cost,
        }
        return {name: float(limit) for name, limit in named.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class Price:
    """What a model route costs, for a million tokens read and written; kept as exact decimals.

    A float is taken for what it prints as: 0.15 is fifteen hundredths.
    """

    input: Decimal | float | str
    output: Decimal | float | str
    currency: str = "USD"

    def __post_init__(self) -> None:
        """Refuse what is no price.

        Raises:
            BadInput: an amount is negative or no number, or the currency is no short word.
        """
        check_name("a currency", self.currency)
        for part in ("input", "output"):
            object.__setattr__(self, part, _amount(f"price of {part}", getattr(self, part)))

    def of(self, input_tokens: int, output_tokens: int) -> Decimal:
        """Return the cost of one answer."""
        return (
            input_tokens * Decimal(self.input) + output_tokens * Decimal(self.output)
        ) / 1_000_000


def _amount(what: str, given: object) -> Decimal:
    if isinstance(given, bool) or not isinstance(given, int | float | str | Decimal):
        raise BadInput(f"{what} is a number, not {given!r}")
    try:
        amount = Decimal(str(given))
    except InvalidOperation as error:
        raise BadInput(f"{what} is a number, not {given!r}") from error
    if not amount.is_finite() or amount < 0:
        raise BadInput(f"{what} is 0 or more, not {given!r}")
    return amount


@dataclass(frozen=True, slots=True)
class Cost:
    """What model calls cost together; tokens of routes without a price are counted apart."""

    amount: Decimal
    currency: str
    unpriced_tokens: int = 0

    def __str__(self) -> str:
        """Say the exact amount, without an exponent: `0.0123 USD`."""
        text = f"{self.amount:f}"
        return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {self.currency}"


def cost_of(usage: Usage, prices: Mapping[str, Price]) -> Cost | None:
    """Return what a run's model calls cost, or None if no price is known for any of them."""
    priced = {route: used for route, used in usage.by_route.items() if route in prices}
    if not priced:
        return None
    amount = sum((prices[route].of(*used) for route, used in priced.items()), Decimal(0))
    unpriced = sum(sum(used) for route, used in usage.by_route.items() if route not in prices)
    return Cost(amount, next(iter(prices.values())).currency, unpriced)


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
    """The run waits for people: `questions` are put and the status changes, together.

    A timer or an event that another branch waits for wakes it as well.
    """

    questions: tuple[Question, ...]
    seconds: float | None = None
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Slept:
    """The run waits for a time, for an event, or for what comes first."""

    seconds: float | None
    events: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class Unwound:
    """What could be compensated is, and what could not has a person's word: the run ends.

    `review` is put in the same transaction. It holds nothing up: its answer takes note.
    """

    review: Question | None = None


Outcome = Done | Asked | Slept | Retried | Broke | Drained | Cancelled | Unwound
