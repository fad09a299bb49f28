"""RunContext: what an agent's code calls so that nothing is asked, paid or done twice.

Each method follows one pattern: look the key up in the journal; if it is recorded, answer
from there; else make the call, record it, and return what was recorded, so that the first
time and every replay see the same (design §4).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from langgraph_durable.clock import Chance, Clock, SystemChance, SystemClock
from langgraph_durable.context.allowances import Allowance
from langgraph_durable.context.blocking import BlockingContext
from langgraph_durable.context.calls import Call, perform
from langgraph_durable.context.emitting import Tells, message
from langgraph_durable.context.pass_state import PassState
from langgraph_durable.context.patching import patched
from langgraph_durable.context.pausing import sleep, wait_for
from langgraph_durable.context.places import Here, Places, here
from langgraph_durable.context.questioning import answered, check_question, put
from langgraph_durable.context.revealing import reveal
from langgraph_durable.context.tooling import call_tool
from langgraph_durable.errors import BadInput, DurableError, UnknownRoute
from langgraph_durable.models import ModelRoutes, normalise, usage
from langgraph_durable.policy import Policy, Standing
from langgraph_durable.redaction import Redaction
from langgraph_durable.runs import (
    Choice,
    Compensation,
    Effect,
    Lease,
    Price,
    Question,
    Retry,
    Run,
    Signal,
    Step,
)
from langgraph_durable.secrets import Secret, SecretProvider
from langgraph_durable.tools import ToolHub
from langgraph_durable.values import Types, encode, fingerprint

__all__ = [
    "Allowance",
    "Here",
    "Journal",
    "PassState",
    "Places",
    "RunContext",
    "Services",
    "current_run",
]


class Journal(Protocol):
    """What a context needs to remember one run. The worker passes it in.

    The writer thread of `journal` fits it, and so does `testing.MemoryJournal`.
    """

    def recorded(self, key: str) -> Step | None:
        """Return what is journaled under a key, in any state."""
        ...

    def steps(self) -> Sequence[Step]:
        """Return all steps of the run, in any state."""
        ...

    def questions(self) -> Sequence[Question]:
        """Return the questions that the run had put when it was claimed."""
        ...

    def answer(self, key: str, digest: str) -> Question | None:
        """Return the decided or expired question of a key that was put for this payload."""
        ...

    async def signals(self, event: str, limit: int) -> Sequence[Signal]:
        """Return the signals of an event that no step has taken, the oldest first."""
        ...

    async def record(self, step: Step) -> Step:
        """Write a step and return it as recorded; raises LeaseLost or StepConflict."""
        ...


def _no_note(_type: str, _data: Mapping[str, Any]) -> None:
    """Nobody listens for warnings."""


def _never_refused(_tool: str, _digest: str) -> bool:
    """Nothing was refused before."""
    return False


@dataclass(frozen=True, slots=True)
class Services:
    """What the steps of a context call: models, tools, rules, time and chance."""

    models: ModelRoutes = field(default_factory=lambda: ModelRoutes({}))
    tools: ToolHub = field(default_factory=ToolHub)
    policy: Policy = field(default_factory=Policy)
    types: Types = field(default_factory=Types)
    clock: Clock = field(default_factory=SystemClock)
    chance: Chance = field(default_factory=SystemChance)
    retry: Retry = field(default_factory=lambda: Retry(attempts=1))
    sleep: Callable[[float], Any] = asyncio.sleep
    note: Callable[[str, Mapping[str, Any]], None] = _no_note
    standing: Sequence[Standing] = ()  # rules that decisions made, for this run's tenant
    was_refused: Callable[[str, str], bool] = _never_refused  # (tool, digest), by this tenant
    allowances: Sequence[Allowance] = ()  # what the run and its tenant may use
    prices: Mapping[str, Price] = field(default_factory=dict)  # by model route
    topics: Sequence[str] = ()  # patterns of the topics that have a sink
    secrets: SecretProvider | None = None
    redaction: Redaction = field(default_factory=Redaction)


_current: ContextVar[RunContext] = ContextVar("langgraph_durable_run")


def running() -> RunContext | None:
    """Return the RunContext of the code that is running, if it is a run's."""
    return _current.get(None)


def current_run() -> RunContext:
    """Return the RunContext of the code that is running.

    Works in nodes, tools and plain functions of a run, in threads that LangGraph or
    `asyncio.to_thread` started, and not in threads of your own (`run_in_executor`,
    `threading.Thread`): hand the context over there.

    Raises:
        DurableError: no durable run is being executed here.
    """
    try:
        return _current.get()
    except LookupError:
        raise DurableError(
            "current_run() was called outside of a durable run. It works in code that a Worker "
            "runs; in a thread of your own pass the RunContext along."
        ) from None


@dataclass(eq=False)
class RunContext:
    """One pass over one run, as its code sees it.

    Keys are explicit, stable and meaningful: `"classify"`, `f"pay:{invoice}"`; a loop
    carries its index. A key names one call in the run for ever.

    It is a dataclass because LangGraph's `Runtime[...]` takes only these (and models).
    """

    run: Run
    lease: Lease
    journal: Journal
    services: Services
    state: PassState = field(default_factory=PassState)

    def __post_init__(self) -> None:
        """Remember the loop, for `blocking`."""
        self.state.note = self.services.note
        self.state.places.counts_visits = self.run.mode == "steps"
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    # --- who and where -----------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.run.id

    @property
    def tenant(self) -> str:
        """The tenant that submitted the run."""
        return self.run.tenant

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self.run.agent

    @property
    def thread(self) -> str:
        """The conversation that the run belongs to."""
        return self.run.thread

    @property
    def epoch(self) -> int:
        """The fencing token: it grows with every claim of the run."""
        return self.lease.epoch

    @property
    def attempt(self) -> int:
        """Which try this is: 1, and one more for each failure since the last progress."""
        return self.run.attempts + 1

    def idempotency_key(self, key: str) -> str:
        """Return the key under which an outside system can recognise this step's repeats."""
        return f"{self.run_id}:{key}"

    async def secret(self, name: str) -> Secret:
        """Return a secret of the run's tenant: asked of the provider once a pass, never stored.

        It is no step, and has no key. Read it where it is used, in a node or inside a tool
        (`current_run().secret(name)`), and give it to nothing that is recorded: a step, a
        tool's arguments, the state.

        Raises:
            SecretMissing: the provider has none of that name; the run fails by it, and goes on
                from its journal when it is retried.
        """
        return await reveal(self, name)

    @property
    def blocking(self) -> BlockingContext:
        """The same methods for sync nodes and sync tools."""
        return BlockingContext(self, self._loop, self._thread)

    # --- steps -------------------------------------------------------------------------

    async def llm(
        self,
        key: str,
        messages: Any,
        *,
        route: str = "default",
        tools: Sequence[Any] | None = None,
        response_format: Any = None,
        retry: Retry | None = None,
        timeout_seconds: float | None = None,
    ) -> AIMessage:
        """Ask the model of a route once; every replay gets the recorded answer.

        A prompt that changed since it was recorded is noted as a warning, and the recorded
        answer is used: prompts are edited all the time, and an answer that was paid and
        acted upon stands.

        With `response_format` (a pydantic class or a JSON schema) the parsed content is in
        `message.additional_kwargs["parsed"]`.

        Raises:
            UnknownRoute: no model is configured for the route.
            NotEncodable: the answer can't be journaled.
        """
        models = self.services.models
        if route not in models:
            raise UnknownRoute(route, models.names)
        asked = normalise(messages)
        request = {"route": route, "messages": asked, "tools": [_tool_name(t) for t in tools or ()]}

        async def ask() -> AIMessage:
            return await models.ask(route, asked, tools=tools, response_format=response_format)

        call = Call(
            key=key,
            kind="llm",
            name=route,
            fingerprint=fingerprint(request, types=self.services.types, where=f"step {key!r}"),
            request=self.services.redaction.readable(asked[-1].content if asked else ""),
            strict=False,
            make=ask,
            tokens=usage,
            retry=retry,
            timeout_seconds=timeout_seconds,
        )
        answer: AIMessage = await perform(self, call)
        return answer

    async def tool(
        self,
        key: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        retry: Retry | None = None,
        timeout_seconds: float | None = None,
        emits: Tells | None = None,
        compensate: Compensation | None = None,
    ) -> Any:
        """Call a tool; returns its result, or `Refused` if a person refused the call.

        If policy asks, the run parks with the exact arguments until somebody decides. An
        idempotent tool gets `"<run_id>:<key>"` and the fencing token; a `once` tool is
        never blindly repeated after a crash. `emits(result)` may return (topic, payload): a
        message that is in the outbox by the very commit that records the call. `compensate`
        is the call that undoes this one, should the run fail or be cancelled.

        Raises:
            UnknownTool: no such tool.
            BadInput: the arguments don't fit the tool.
            NonDeterminismError: the key was recorded for another tool or other arguments.
            ToolDenied: policy forbids the call.
            ToolError: the tool reported a failure.
        """
        given = dict(arguments or {})
        return await call_tool(
            self, key, tool, given, retry, timeout_seconds, tells=emits, compensate=compensate
        )

    async def once(
        self,
        key: str,
        call: Callable[[], Any],
        *,
        request: Any = None,
        effect: Effect = Effect.READ,
        probe: Callable[[], Any] | None = None,
        retry: Retry | None = None,
        timeout_seconds: float | None = None,
        compensate: Compensation | None = None,
    ) -> Any:
        """Record the result of a call of your own (sync functions run in a thread).

        `request`, if given, is what the call depends on: another one on replay is an
        error. A crash after the call and before its record makes the call again, unless
        `effect` is ONCE: then `probe` looks whether it happened and returns its result
        (`Found(result)` if that may be None) or None for "it did not"; without a probe the
        run parks and asks a person. Looking and then writing has a race: see the guide
        "Tools".
        `compensate` is the tool call that undoes it, should the run fail or be cancelled; a
        call that has one is a write, of effect IDEMPOTENT if it isn't ONCE.

        Raises:
            BadInput: a probe is given for a call that may be repeated, or the compensation's
                tool can't be repeated safely.
            NonDeterminismError: the key was recorded for another request.
            NotEncodable: the result can't be journaled.
        """
        if not isinstance(effect, Effect):  # its call costs as much as the rest of this
            effect = Effect(effect)
        if probe is not None and effect is not Effect.ONCE:
            raise BadInput(f"step {key!r}: a probe is for effect='once'; others are made again")
        digest = ""
        if request is not None:
            digest = fingerprint(request, types=self.services.types, where=f"step {key!r}")
        if compensate is not None and effect is Effect.READ:
            effect = Effect.IDEMPOTENT
        step = Call(
            key=key,
            kind="once",
            name=_name_of(call),
            fingerprint=digest,
            request="" if request is None else self.services.redaction.readable(request),
            make=call,
            effect=effect,
            probe=probe,
            retry=retry,
            timeout_seconds=timeout_seconds,
            compensate=compensate,
            asked=request,
        )
        return await perform(self, step)

    async def ask(
        self,
        key: str,
        question: Any,
        *,
        choices: tuple[Choice, ...] = ("respond",),
        schema: Mapping[str, Any] | None = None,
        role: str | None = None,
        expires_in_seconds: float | None = None,
        on_expiry: str = "fail",
        default: Any = None,
        approvals: int = 1,
        remind_after_seconds: float | None = None,
        escalate_after_seconds: float | None = None,
        escalate_to: str | None = None,
    ) -> Any:
        """Ask a person and wait without a worker; returns the answer.

        `respond` gives its value, `approve` gives True, `reject` gives `Refused`. A
        question that nobody answers in time takes the declared path: `fail` ends the run,
        `reject` gives `Refused(expired=True)`, `default` gives `default`.

        `approvals` different people must give the same answer; somebody is reminded each
        `remind_after_seconds`, and after `escalate_after_seconds` the role `escalate_to`
        decides: the words of a policy `Rule`.

        Raises:
            BadInput: nobody could answer it so, or a time is none.
        """
        wanted = Question(
            id="",
            key=key,
            kind="ask",
            payload=question,
            digest=fingerprint(question, types=self.services.types, where=f"question {key!r}"),
            allowed=choices,
            role=role,
            schema=schema,
            expires_in_seconds=expires_in_seconds,
            on_expiry=on_expiry,  # type: ignore[arg-type]  # checked below
            default=default,
            approvals=approvals,
            remind_after_seconds=remind_after_seconds,
            escalate_after_seconds=escalate_after_seconds,
            escalate_to=escalate_to,
        )
        check_question(wanted)
        encode(default, types=self.services.types, where=f"default of question {key!r}")

        async def answer() -> Any:
            decided = self.journal.answer(key, wanted.digest)
            if decided is None:
                put(self, wanted)
            return answered(decided)

        call = Call(
            key=key,
            kind="ask",
            fingerprint=wanted.digest,
            request=self.services.redaction.readable(question),
            make=answer,
            retry=Retry(attempts=1),
        )
        return await perform(self, call)

    async def emit(self, key: str, topic: str, payload: Mapping[str, Any]) -> None:
        """Send a message: in the outbox by the commit of this step, delivered afterwards.

        At least once and in the run's order, to the sink that `Durable(outbox=...)` has for
        the topic; its id, `"<run_id>:<key>"`, tells repeats apart. To send with the record
        of a tool call, give `emits=` to `ctx.tool`.

        Raises:
            BadInput: no sink takes the topic, or the payload is no JSON object.
        """
        told = message(self, key, topic, payload)
        digest = fingerprint(dict(payload), types=self.services.types, where=f"step {key!r}")
        call = Call(
            key=key,
            kind="emit",
            name=topic,
            fingerprint=digest,
            request=self.services.redaction.readable(payload),
            make=_nothing,
            emits=lambda _: (told,),
        )
        await perform(self, call)

    async def now(self, key: str) -> datetime:
        """Return the time, aware, in UTC; a replay sees the same."""
        value: datetime = await self._given(key, "now", self.services.clock.now)
        return value

    async def uuid(self, key: str) -> UUID:
        """Return a new id; a replay sees the same."""
        value: UUID = await self._given(key, "uuid", self.services.chance.uuid)
        return value

    async def random(self, key: str) -> float:
        """Return a number in [0, 1); a replay sees the same."""
        value: float = await self._given(key, "random", self.services.chance.random)
        return value

    async def sleep(self, key: str, seconds: float) -> None:
        """Wait without a worker: the run leaves it and is queued again when the time comes.

        Raises:
            BadInput: the time is negative, no finite number, or longer than a century.
        """
        await sleep(self, key, seconds)

    async def wait_for(self, key: str, event: str, timeout_seconds: float | None = None) -> Any:
        """Wait without a worker until somebody signals an event; returns its payload.

        `durable.send(run_id, event, payload)` signals it. A signal that came before the run
        waits is kept; signals of an event are taken in the order of arrival, each by one step.
        A signal that is there when the run looks is taken, even when the time is over.

        Raises:
            WaitTimedOut: none came in time; every replay sees the same. It is a TimeoutError.
            BadInput: the event has no name, or the time is negative or no finite number.
            NonDeterminismError: the key was recorded for another event.
        """
        return await wait_for(self, key, event, timeout_seconds)

    async def patched(self, id: str) -> bool:
        """Tell whether this run takes the new side of a change: `if await ctx.patched("tax"):`.

        False for a run that came past this point on the old code, True for one that starts
        on the new code, or reaches the point on it. Decided once for a run and an id, and
        recorded: wherever and however often it is asked, the answer stays. See
        docs/code-changes.md for its limits.
        """
        return await patched(self, id)

    async def _given(self, key: str, kind: Any, value: Callable[[], Any]) -> Any:
        async def make() -> Any:
            return value()

        return await perform(self, Call(key=key, kind=kind, make=make))

    # --- for the modes -----------------------------------------------------------------

    def here(self) -> Here:
        """Return where in the graph the calling code runs."""
        return here(self.state.places)

    def enter(self) -> Any:
        """Make this the current run of the calling context; returns the token to leave with.

        Graphs that the code calls inherit the handler that knows their places.
        """
        config: RunnableConfig = {"callbacks": [self.state.places]}
        return _current.set(self), var_child_runnable_config.set(config)

    @staticmethod
    def leave(token: Any) -> None:
        """Undo `enter`."""
        current, config = token
        _current.reset(current)
        var_child_runnable_config.reset(config)


async def _nothing() -> None:
    """An emit has no call: its message is written with its record."""


def _name_of(call: Callable[[], Any]) -> str:
    """Return a function's name for people; a lambda has none."""
    name = str(getattr(call, "__qualname__", ""))
    return "" if name.endswith("<lambda>") else name


def _tool_name(tool: Any) -> str:
    if isinstance(tool, Mapping):
        function = tool.get("function", tool)
        return str(function.get("name", "?"))
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", type(tool).__name__))
