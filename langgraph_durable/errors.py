"""One family of errors.

    DurableError
    ├── BadInput                 refused at the boundary; nothing was written
    │   ├── UnknownAgent         no agent of that name (or version) is registered here
    │   ├── UnknownRoute         no model route of that name
    │   ├── UnknownTool          no tool of that name
    │   ├── NotEncodable         a value that the journal can't keep
    │   └── TooLarge             a value over its limit
    ├── BadKey                   no live API key has this secret
    ├── MissingPepper            keys are used, and no pepper is set
    ├── Forbidden                the caller's roles don't allow it
    ├── NoSuchAgent              a claimed run's agent is on no live worker
    ├── NotFound                 no such run or question for this tenant
    ├── Conflict                 the thing exists, and its state refuses the request
    │   ├── IllegalMove          the run's status does not lead there
    │   ├── NotWaiting           a decision for a question that is no longer open
    │   └── AlreadyDecided       a different decision was stored first
    ├── StoreError               the database can't be opened, or is of another version
    │   ├── SchemaMismatch       its schema is older or newer than this code
    │   └── EncryptionError      keys are missing or wrong, or a sealed value was changed
    ├── StepError                something about a step
    │   ├── DuplicateKey         one key, two places in one pass
    │   ├── NonDeterminismError  replay reached a recorded key with another request
    │   ├── StepConflict         another writer recorded this key first (also control flow)
    │   ├── StepTimeout          a step took longer than its limit
    │   ├── WaitTimedOut         the event that a step waited for did not come in time
    │   ├── ToolDenied           policy forbids the call
    │   │   └── NotApproved      it needs an approval of exactly this call, and has none
    │   ├── ToolError            a tool failed in a way it meant to report: an answer
    │   └── ToolUnreachable      its server can't be reached, or the connection broke
    ├── QuestionExpired          nobody answered in time, and the question was declared to fail
    ├── SecretMissing            the provider has no secret of that name
    ├── OverBudget               a budget was used up, and a person refused to raise it
    ├── CodeChanged              the code that a parked run needs is gone
    ├── QuestionSwallowed        an `except` caught the pause, and the graph went on
    └── LeaseLost                another worker owns the run now (also control flow)

    GraphBubbleUp (LangGraph's)
    └── PassEnded                private control flow: never catch it
        ├── Parked               a question was put, a timer was set, or an event is awaited
        ├── HandedBack           the worker drains
        ├── StepConflict
        └── LeaseLost

Callers branch on the class and read attributes; nobody parses a text.
"""

from __future__ import annotations

from langgraph.errors import GraphBubbleUp


class DurableError(Exception):
    """Base of all errors of this package."""


class BadInput(DurableError, ValueError):
    """A request was refused at the boundary; nothing was written."""


class UnknownAgent(BadInput):
    """No agent of that name and version is registered here."""

    def __init__(self, agent: str, known: list[str]) -> None:
        self.agent, self.known = agent, known
        names = ", ".join(known) or "none"
        super().__init__(
            f"unknown agent {agent!r}. Registered here: {names}. "
            "Register it with durable.graph(...) or @durable.agent(...) before submitting."
        )


class NoSuchAgent(DurableError):
    """A run was claimed, and no live worker has its agent."""

    def __init__(self, agent: str, worker: str) -> None:
        self.agent, self.worker = agent, worker
        super().__init__(
            f"no live worker has announced agent {agent!r}, and worker {worker}, which claimed the "
            "run, doesn't have it either. Start a worker that has it, then retry the run."
        )


class UnknownRoute(BadInput):
    """No model is configured for that route."""

    def __init__(self, route: str, known: list[str]) -> None:
        self.route, self.known = route, known
        super().__init__(
            f"unknown model route {route!r}. Configured: {', '.join(known) or 'none'}. "
            "Pass it as Durable(..., models={'" + route + "': model})."
        )


class UnknownTool(BadInput):
    """No tool of that name is registered."""

    def __init__(self, tool: str, known: list[str]) -> None:
        self.tool, self.known = tool, known
        super().__init__(
            f"unknown tool {tool!r}. Registered: {', '.join(known) or 'none'}. "
            "Register it on the ToolHub that Durable(..., tools=hub) was given."
        )


class NotEncodable(BadInput, TypeError):
    """A value that the journal can't keep, because it would not come back equal."""

    def __init__(self, where: str, path: str, kind: str, way_out: str) -> None:
        self.where, self.path, self.kind, self.way_out = where, path, kind, way_out
        super().__init__(
            f"{where}: the value at {path} has type {kind}, which is not journaled. {way_out}"
        )


class TooLarge(BadInput):
    """A value over its limit."""

    def __init__(self, what: str, size: int, limit: int, way_out: str) -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(f"{what} is {size:,} bytes; the limit is {limit:,}. {way_out}")


class BadKey(DurableError):
    """No live API key has this secret: unknown, wrong, revoked and expired look the same."""

    def __init__(self) -> None:
        super().__init__("no live API key has this secret: it is unknown, revoked or expired")


class MissingPepper(DurableError):
    """API keys are used, and the pepper that they are hashed with is not set."""

    def __init__(self, variable: str) -> None:
        self.variable = variable
        super().__init__(
            f"API keys need a pepper: set {variable} to at least 16 random characters (the same in "
            "every process, and not in the database), or pass Durable(pepper=...). "
            "One can be made with: openssl rand -base64 32"
        )


class Forbidden(DurableError):
    """The caller may see the thing, but its roles don't allow what was asked."""

    def __init__(self, what: str, needed: str) -> None:
        self.what, self.needed = what, needed
        super().__init__(f"{what} takes a key with the role {needed!r}")


class NotFound(DurableError, LookupError):
    """No such thing for this tenant: absent and foreign look the same."""

    def __init__(self, what: str, name: str) -> None:
        self.what, self.name = what, name
        super().__init__(f"{what} {name!r} not found")


class Conflict(DurableError):
    """The thing exists, and its state refuses the request."""


class IllegalMove(Conflict):
    """The run's status does not lead to the one asked for."""

    def __init__(self, run_id: str, status: str, target: str) -> None:
        self.run_id, self.status, self.target = run_id, status, target
        super().__init__(f"run {run_id} is {status}, which does not lead to {target}")


class NotWaiting(Conflict):
    """A decision for a question that is no longer open."""

    def __init__(self, question_id: str, state: str) -> None:
        self.question_id, self.state = question_id, state
        super().__init__(f"question {question_id} is {state}; it takes no decision any more")


class AlreadyDecided(Conflict):
    """A different decision was stored first, and stands."""

    def __init__(self, question_id: str, decided: str, by: str) -> None:
        self.question_id, self.decided, self.by = question_id, decided, by
        super().__init__(
            f"question {question_id} was already decided otherwise: {decided} by {by}. That decision stands."
        )


class StoreError(DurableError):
    """The database can't be opened or used."""


class SchemaMismatch(StoreError):
    """The database's schema is older or newer than this code."""


class EncryptionError(StoreError):
    """Encryption keys are missing or wrong, or a sealed value was changed."""


class StepError(DurableError):
    """Something about a step, named by its key."""

    key: str


class DuplicateKey(StepError):
    """One key was used from two places in one pass."""

    def __init__(self, key: str, first: str, second: str) -> None:
        self.key, self.first, self.second = key, first, second
        super().__init__(
            f"step key {key!r} was used twice in one pass: first in {first}, now in {second}. "
            "A key names one call; give each its own, and in a loop put the index in it: "
            f"f'{key}:{{i}}'."
        )


class NonDeterminismError(StepError):
    """Replay reached a recorded key with a different request."""

    def __init__(self, key: str, recorded: str, requested: str) -> None:
        self.key, self.recorded, self.requested = key, recorded, requested
        super().__init__(
            f"step {key!r} was recorded for {recorded} but this pass asks for {requested}. "
            "Give the new call a new key, or submit under a new agent version."
        )


class StepTimeout(StepError, TimeoutError):
    """A step took longer than its limit."""

    def __init__(self, key: str, limit_seconds: float) -> None:
        self.key, self.limit_seconds = key, limit_seconds
        super().__init__(f"step {key!r} took longer than its limit of {limit_seconds:g} s")


class WaitTimedOut(StepError, TimeoutError):
    """An event did not come in time; every replay sees the same, whatever comes later."""

    def __init__(self, key: str, event: str) -> None:
        self.key, self.event = key, event
        super().__init__(f"step {key!r}: the event {event!r} did not come in time")


class ToolDenied(StepError):
    """Policy forbids the call, whatever anybody approves."""

    def __init__(self, key: str, tool: str, rule: str) -> None:
        self.key, self.tool, self.rule = key, tool, rule
        super().__init__(f"step {key!r}: the tool {tool!r} is denied by the rule {rule}")


class NotApproved(ToolDenied):
    """A call that needs an approval came without one, or with one for another call."""

    def __init__(self, key: str, tool: str, why: str) -> None:
        self.key, self.tool, self.rule = key, tool, why
        StepError.__init__(self, f"step {key!r}: the tool {tool!r} needs an approval, but {why}")


class ToolError(StepError):
    """A tool failed in a way that it meant to report; raise it from a tool to say so.

    It is an answer: it is journaled, and raised again on every replay, so code may catch it
    and go on. `outcome_unknown` tells whether the call may have happened all the same; then
    it is not an answer, and a call that can't be repeated is not repeated.
    """

    def __init__(
        self, message: str, *, tool: str = "", key: str = "", outcome_unknown: bool = False
    ) -> None:
        self.tool, self.key, self.outcome_unknown = tool, key, outcome_unknown
        super().__init__(message)


class ToolUnreachable(StepError):
    """The server of a tool can't be reached, or the connection broke under the call.

    It is not an answer: the call is made again. `outcome_unknown` as for ToolError.
    """

    def __init__(
        self, message: str, *, tool: str = "", key: str = "", outcome_unknown: bool = False
    ) -> None:
        self.tool, self.key, self.outcome_unknown = tool, key, outcome_unknown
        super().__init__(message)


class QuestionExpired(DurableError):
    """Nobody answered a question in time, and it was declared to fail the run."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"question {key!r} expired: nobody answered it in time")


class SecretMissing(DurableError):
    """The provider has no secret of that name for this tenant and agent."""

    def __init__(self, name: str, tenant: str, agent: str, why: str) -> None:
        self.name, self.tenant, self.agent = name, tenant, agent
        super().__init__(
            f"there is no secret {name!r} for tenant {tenant!r} and agent {agent!r}: {why}. Add it "
            "where the workers run, then retry the run: it goes on from its journal."
        )


class OverBudget(DurableError):
    """A budget was used up, and a person refused to raise it."""

    reason = "budget"

    def __init__(self, scope: str, what: str, by: str) -> None:
        self.scope, self.what, self.by = scope, what, by
        super().__init__(f"the {scope}'s budget of {what} is used up, and {by} did not raise it")


class CodeChanged(DurableError):
    """The code that a parked run needs is gone; its decisions are kept."""

    def __init__(self, agent: str, missing: str, detail: str) -> None:
        self.agent, self.missing = agent, missing
        super().__init__(
            f"agent {agent!r} has no {missing}: {detail} The decision is kept: deploy code that "
            "has it again and retry the run, or cancel the run."
        )


class QuestionSwallowed(DurableError):
    """User code caught the exception of a pause and the graph went on without an answer."""

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(
            f"{where} put a question, but an `except` around it caught the pause and the graph went "
            "on without an answer. Let GraphBubbleUp through: `except Exception` around a pause must "
            "re-raise it."
        )


class PassEnded(GraphBubbleUp):
    """Private control flow; if you see this, an `except` of yours catches too much."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}. This exception ends a pass of a durable run and must not be caught: "
            "re-raise langgraph.errors.GraphBubbleUp in your `except`."
        )


class Parked(PassEnded):
    """The run leaves its worker: a question was put, a timer was set, or an event is awaited."""


class HandedBack(PassEnded):
    """The worker drains: the run goes back to the queue at a step boundary."""


class StepConflict(StepError, PassEnded):
    """Another writer recorded this key first; this worker gives the run up."""

    def __init__(self, run_id: str, key: str) -> None:
        self.run_id, self.key = run_id, key
        PassEnded.__init__(
            self, f"step {key!r} of run {run_id} was recorded by another writer first"
        )


class LeaseLost(DurableError, PassEnded):
    """Another worker owns the run now; this one writes nothing more."""

    def __init__(self, run_id: str, epoch: int) -> None:
        self.run_id, self.epoch = run_id, epoch
        PassEnded.__init__(self, f"the lease on run {run_id} (epoch {epoch}) is lost")
