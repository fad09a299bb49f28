"""Durable: the one object that users make. Registry, store and client in one.

It is synchronous, because the store is; web frameworks run plain functions in their thread
pool. It starts no worker: `Worker(durable)` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import jsonschema

from langgraph_durable import agents, agentscope
from langgraph_durable.agents import Agent
from langgraph_durable.checkpoint import Savers
from langgraph_durable.clock import Chance, Clock, SystemChance, SystemClock
from langgraph_durable.context import Services
from langgraph_durable.encryption import keyring
from langgraph_durable.errors import BadInput, Forbidden, UnknownAgent
from langgraph_durable.keys import SUPERVISOR, Keys, check_approver, may_answer, may_hand_over
from langgraph_durable.models import ModelRoutes
from langgraph_durable.modes.human_in_the_loop import answer_in_kind
from langgraph_durable.policy import Policy, Rule
from langgraph_durable.redaction import Redaction, restored
from langgraph_durable.relay import Message, Relay, Sink, sinks, topic_routes
from langgraph_durable.runs import (
    COMPENSATE,
    MAX_NAME_CHARACTERS,
    Budget,
    Cost,
    Decision,
    Event,
    Mode,
    Price,
    Question,
    QuestionState,
    Refused,
    Retry,
    Run,
    Signal,
    StandingRule,
    Status,
    Step,
    StepState,
    check_name,
    cost_of,
)
from langgraph_durable.secrets import SecretProvider
from langgraph_durable.store import (
    Inbox,
    Letters,
    NewRun,
    NewSignal,
    Page,
    Parked,
    RunStore,
    open_engine,
)
from langgraph_durable.tools import ToolHub
from langgraph_durable.topics import NOTICES
from langgraph_durable.values import Types, decode, encode, fingerprint

F = TypeVar("F", bound=Callable[..., Any])

MAX_INPUT_BYTES = 1_000_000
MAX_SIGNAL_BYTES = 256_000
_ALL = 10_000
_POLL_SECONDS = (0.02, 0.05, 0.1, 0.25)


class Durable:
    """Registry of agents, and client of the store.

    Args:
        url: `sqlite:///support.db` or `postgresql+psycopg://user@host/db`. An empty
            database is given its schema; an older one is refused until
            `langgraph-durable db upgrade` was run.
        tools: the tools that `ctx.tool` reaches.
        models: routes of `ctx.llm`: a name -> a LangChain chat model, a string for
            `init_chat_model`, or a function `(messages, route)`.
        rules: policy of tool calls.
        types: pydantic models, dataclasses and enums that may be journaled.
        retry: how often a failing step is tried in place; by default once (the run is
            tried again, and its recorded steps answer at once).
        clock, chance: time and chance, in tests.
        create: give an empty database its schema; False refuses it instead.
        pepper: the secret that API keys are hashed with, at least 16 characters; by default
            from LANGGRAPH_DURABLE_PEPPER. Needed only where keys are used.
        budgets: what the runs of a tenant may use together in a time, by tenant; a run that
            would go over asks a person.
        prices: what model routes cost, all in one currency: for budgets of cost, and for what
            a run is shown to have cost. A route without a price counts tokens only.
        outbox: where messages of `ctx.emit` go: a topic (or a pattern such as `refund.*`) -> a
            webhook, or a plain function of a message.
        notify: who is told that a question is asked, waits, expired, or a run ended: a
            `Webhook`, or a function of a `Message`. At least once, from any worker.
        secrets: what `ctx.secret` asks: `EnvSecrets`, `MappingSecrets` or a function of a
            `Wanted` (langgraph_durable.secrets), sync or async. Needed only where agents run.
        encryption_keys: what payloads are encrypted with in the database; the first encrypts,
            each decrypts. By default from LANGGRAPH_DURABLE_ENCRYPTION_KEYS (with commas).
        redact: names of fields that questions, runs, journal, events and messages don't show.
            By default from LANGGRAPH_DURABLE_REDACT (with commas).

    Raises:
        StoreError: the database can't be opened.
        SchemaMismatch: its schema is older or newer than this code.
        EncryptionError: it is encrypted, and the keys are missing or are others.
    """

    def __init__(
        self,
        url: str,
        *,
        tools: ToolHub | None = None,
        models: Mapping[str, Any] | None = None,
        rules: Iterable[Rule] = (),
        types: Iterable[type] = (),
        retry: Retry | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        create: bool = True,
        pepper: str | None = None,
        budgets: Mapping[str, Budget] | None = None,
        prices: Mapping[str, Price] | None = None,
        notify: Sequence[Sink] = (),
        outbox: Mapping[str, Sink] | None = None,
        secrets: SecretProvider | None = None,
        encryption_keys: Sequence[str] | None = None,
        redact: Iterable[str] | None = None,
    ) -> None:
        self.types = Types([Refused, *types])
        listeners = sinks(notify)
        routes = topic_routes(outbox or {})
        self._keyring = keyring(encryption_keys)
        self.redaction = Redaction.of(redact)
        self.store = self._open(url, clock, create)
        self.url = self.store.engine.url.render_as_string(hide_password=False)
        self.store.notifies = bool(listeners)
        self.keys = Keys(self.store, pepper)
        self.services = Services(
            models=ModelRoutes(models or {}),
            tools=tools or ToolHub(),
            policy=Policy(rules),
            types=self.types,
            clock=clock or SystemClock(),
            chance=chance or SystemChance(),
            retry=retry or Retry(attempts=1),
            prices=_of_one_currency(prices or {}),
            topics=tuple(outbox or {}),
            secrets=secrets,
            redaction=self.redaction,
        )
        self.budgets = dict(budgets or {})
        self.relay = Relay(self.store, {NOTICES: listeners, **routes}, self.services.chance.random)
        self._agents: dict[tuple[str, str], Agent] = {}

    def _open(self, url: str, clock: Clock | None, create: bool) -> RunStore:
        engine = open_engine(url, self._keyring)
        store = RunStore(engine, clock, self.types, self.redaction)
        try:
            store.check_schema(create=create)
        except BaseException:
            engine.dispose()  # nobody gets to use what it has open
            raise
        return store

    def close(self) -> None:
        """Let go of the database's connections."""
        self.store.engine.dispose()

    # --- registering -------------------------------------------------------------------

    def graph(
        self,
        name: str,
        graph: Any,
        *,
        mode: Mode,
        version: str = "1",
        adr: str | None = None,
        **options: Any,
    ) -> Agent:
        """Register a compiled graph, a StateGraph or an @entrypoint.

        `mode="graph"`: the whole graph is one leased run on LangGraph's checkpointer; a
        checkpointer that it was compiled with is replaced on a copy, its store is kept.
        `mode="steps"`: it runs from its start and its `ctx` steps answer from the journal.

        Options: `on_busy` ("queue" or "refuse" a second run on a thread), `max_attempts`,
        `deadline_seconds` of one pass, `retry` (the backoff between attempts), `context`
        (given to a graph that has a context schema of its own), `budget` (what one run may
        use before a person is asked).

        Raises:
            BadInput: the graph can't be run in this mode, or the name is taken.
        """
        agent = agents.of_graph(name, graph, mode=mode, version=version, adr=adr, **options)
        builder = getattr(agent.graph, "builder", None)
        for attribute in ("state_schema", "input_schema", "output_schema"):
            schema = getattr(builder, attribute, None)
            if schema is not None:
                self.types.discover(schema)
        return self._register(agent)

    def agent(
        self, name: str, *, version: str = "1", adr: str | None = None, **options: Any
    ) -> Callable[[F], F]:
        """Register the decorated async function `(ctx, input)` as an agent.

        Raises:
            BadInput: it isn't async, or the name is taken.
        """

        def register(function: F) -> F:
            self._register(agents.of_function(name, function, version=version, adr=adr, **options))
            return function

        return register

    def _register(self, agent: Agent) -> Agent:
        known = (agent.name, agent.version)
        if known in self._agents:
            raise BadInput(
                f"agent {agent.name!r} version {agent.version!r} is already registered. "
                "Give it another name, or another version=."
            )
        self._agents[known] = agent
        return agent

    @property
    def agents(self) -> Sequence[Agent]:
        """The registered agents."""
        return list(self._agents.values())

    def find(self, name: str, version: str | None = None) -> Agent:
        """Return a registered agent; without a version the one registered last.

        Raises:
            UnknownAgent: there is none of that name and version.
        """
        versions = [agent for agent in self._agents.values() if agent.name == name]
        wanted = [agent for agent in versions if version is None or agent.version == version]
        if not wanted:
            shown = name if version is None or not versions else f"{name}, version {version}"
            raise UnknownAgent(shown, sorted(f"{n} (version {v})" for n, v in self._agents))
        return wanted[-1]

    def savers(self) -> Savers:
        """Return savers for graph mode; each worker opens and closes its own."""
        return Savers.for_url(self.url, types=self.types, keyring=self._keyring)

    def purge(self, older_than_seconds: float, *, tenant: str | None = None) -> int:
        """Forget finished runs that ended longer ago, with journal, questions, events, messages
        and LangGraph's checkpoints of threads that no run names any more; returns how many.

        Raises:
            BadInput: the age is negative.
        """
        if not older_than_seconds >= 0:
            raise BadInput(f"older_than_seconds is 0 or more, not {older_than_seconds!r}")
        return self.store.purge(older_than_seconds, tenant)

    def check_adrs(self, root: Path | str = ".") -> Mapping[str, str]:
        """Return what is wrong with the agents' ADRs, by "name version"; empty if nothing is."""
        found = {}
        for agent in self.agents:
            problem = agents.adr_problem(agent, Path(root))
            if problem is not None:
                found[f"{agent.name} {agent.version}"] = problem
        return found

    # --- runs --------------------------------------------------------------------------

    def submit(
        self,
        agent: str,
        input: Any = None,
        *,
        tenant: str = "default",
        idempotency_key: str | None = None,
        priority: int = 0,
        thread: str | None = None,
        max_attempts: int | None = None,
        version: str | None = None,
        by: str = "client",
    ) -> str:
        """Insert a run and return its id at once; a worker executes it.

        The same `idempotency_key` of a tenant again returns the same run. `thread` names a
        conversation of the tenant and agent; by default each run has its own.

        Raises:
            UnknownAgent: no such agent, or not in that version.
            NotEncodable, TooLarge: the input can't be kept.
            Conflict: the idempotency key was used for another request, or the thread is
                busy and the agent refuses a second run.
        """
        return self.submit_or_find(
            agent,
            input,
            tenant=tenant,
            idempotency_key=idempotency_key,
            priority=priority,
            thread=thread,
            max_attempts=max_attempts,
            version=version,
            by=by,
        )[0].id

    def submit_or_find(
        self,
        agent: str,
        input: Any = None,
        *,
        tenant: str = "default",
        idempotency_key: str | None = None,
        priority: int = 0,
        thread: str | None = None,
        max_attempts: int | None = None,
        version: str | None = None,
        by: str = "client",
    ) -> tuple[Run, bool]:
        """Submit a run, and tell whether it is new or the idempotency key had made it already.

        Raises:
            UnknownAgent, NotEncodable, TooLarge, Conflict: as `submit`.
        """
        known = self.find(agent, version)
        check_name("tenant", tenant)
        for what, value in (("thread", thread), ("idempotency_key", idempotency_key)):
            if value is not None:
                check_name(what, value)
        if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 1_000_000:
            raise BadInput(f"priority is a whole number up to 1,000,000, not {priority!r}")
        if max_attempts is not None and not 1 <= max_attempts <= 1_000:
            raise BadInput(f"max_attempts is 1 to 1,000, not {max_attempts}")
        run_id = str(self.services.chance.uuid())
        agents.check_input(known, input)
        text = encode(
            input, types=self.types, where=f"input of agent {agent!r}", limit_bytes=MAX_INPUT_BYTES
        )
        new = NewRun(
            id=run_id,
            tenant=tenant,
            agent=known.name,
            version=known.version,
            mode=known.mode,
            input=text,
            thread=thread or run_id,
            priority=priority,
            max_attempts=max_attempts or known.max_attempts,
            deadline_seconds=known.deadline_seconds,
            idempotency_key=idempotency_key,
            refuse_busy_thread=known.on_busy == "refuse" and thread is not None,
            actor=by,
        )
        run = self.store.create(new)
        return run, run.id == run_id

    def get(self, run_id: str, tenant: str | None = None) -> Run:
        """Return a run with its open questions and its usage.

        Raises:
            NotFound: no such run for this tenant.
        """
        return self.store.get(_sane(run_id), tenant)

    def cost(self, run: Run) -> Cost | None:
        """Return what a run's model calls cost, or None if no price is known for any of them."""
        return cost_of(run.usage, self.services.prices)

    def runs(
        self,
        *,
        tenant: str | None = None,
        status: Status | str | None = None,
        agent: str | None = None,
        agents: Collection[str] | None = None,
        thread: str | None = None,
        before: Run | None = None,
        limit: int = 100,
    ) -> list[Run]:
        """Return runs, newest first; those that are older than the run `before`."""
        wanted = None if status is None else Status(status)
        return self.store.list_runs(
            Page(
                tenant=tenant,
                status=wanted,
                agent=agent,
                agents=agents,
                thread=thread,
                before=None if before is None else (before.created_at, before.id),
                limit=limit,
            )
        )

    def journal(self, run_id: str, tenant: str | None = None) -> list[Step]:
        """Return a run's steps in the order of recording.

        Raises:
            NotFound: no such run for this tenant.
        """
        self.get(run_id, tenant)
        return self.store.list_steps(run_id)

    def value(self, step: Step) -> Any:
        """Return what a step recorded, decoded; None if it isn't recorded."""
        return None if step.value is None else decode(step.value, types=self.types)

    def undone(self, steps: Sequence[Step]) -> dict[str, str]:
        """Tell of the steps of a run which of them were compensated, and which could not be.

        By key: "compensated by …", or "not compensated: " and why a person left it so.
        """
        made = {step.key: step for step in steps if step.state is StepState.RECORDED}
        told = {}
        for step in steps:
            undoing = made.get(COMPENSATE + step.key)
            if step.compensation is None or undoing is None:
                continue
            value = self.value(undoing)
            if isinstance(value, Refused):
                told[step.key] = f"not compensated: {value.reason or 'refused'} ({value.by})"
            else:
                told[step.key] = f"compensated by {undoing.key}"
        return told

    def events(self, run_id: str, tenant: str | None = None, *, after: int = 0) -> Sequence[Event]:
        """Return the audit of a run, in order; what came after the event with the id `after`.

        Raises:
            NotFound: no such run for this tenant.
        """
        self.get(run_id, tenant)
        return self.store.list_events(run_id, after)

    def send(
        self,
        run_id: str,
        event: str,
        payload: Any = None,
        *,
        tenant: str | None = None,
        id: str | None = None,
        by: str = "client",
    ) -> Signal:
        """Signal an event to a run, which takes it by `ctx.wait_for`, now or later.

        `id` is the sender's: the same signal again under it changes nothing. Without one each
        call sends another signal.

        Raises:
            NotFound: no such run for this tenant.
            BadInput, NotEncodable, TooLarge: the event has no name, or the payload can't be kept.
            Conflict: the run has ended, too many signals wait for it, or the id was used for
                another signal.
        """
        check_name("an event", event)
        if id is not None:
            check_name("a signal's id", id)
        where = f"payload of the event {event!r}"
        text = encode(payload, types=self.types, where=where, limit_bytes=MAX_SIGNAL_BYTES)
        new = NewSignal(
            run_id=_sane(run_id),
            id=id or str(self.services.chance.uuid()),
            event=event,
            payload=text,
            digest=fingerprint(payload, types=self.types, where=where),
            by=by,
        )
        return self.store.send(new, tenant)

    def signals(self, run_id: str, tenant: str | None = None) -> list[Signal]:
        """Return the signals of a run in the order of arrival, and which step took each.

        Raises:
            NotFound: no such run for this tenant.
        """
        self.get(run_id, tenant)
        return self.store.list_signals(run_id)

    def cancel(self, run_id: str, *, by: str = "client", tenant: str | None = None) -> Status:
        """Cancel a run; `cancelling` while a call that can't be interrupted ends, or steps that
        declared a compensation are undone.

        Raises:
            NotFound: no such run for this tenant.
            Conflict: it has ended otherwise.
        """
        return self.store.cancel(_sane(run_id), by=by, tenant=tenant)

    def retry(self, run_id: str, *, by: str = "client", tenant: str | None = None) -> Run:
        """Queue a failed run again: its journal and decisions kept, a fresh budget of attempts.

        Raises:
            NotFound: no such run for this tenant.
            IllegalMove: it has not failed.
            Conflict: it failed, and its steps were compensated: submit it anew.
        """
        return self.store.retry(_sane(run_id), by=by, tenant=tenant)

    def wait(self, run_id: str, *, timeout_seconds: float = 60.0, tenant: str | None = None) -> Run:
        """Return the run when it has ended or waits for a person, or as it is at the timeout."""
        until = time.monotonic() + timeout_seconds
        for pause in _pauses():
            run = self.get(run_id, tenant)
            if run.status.is_final or run.status is Status.WAITING_HUMAN:
                return run
            if time.monotonic() >= until:
                return run
            time.sleep(min(pause, max(0.0, until - time.monotonic())))
        raise AssertionError("unreachable: the pauses never end")

    # --- messages ----------------------------------------------------------------------

    def outbox(
        self,
        *,
        tenant: str | None = None,
        run_id: str | None = None,
        state: Literal["pending", "delivered", "dead"] | None = None,
        limit: int = 100,
    ) -> list[Message]:
        """Return messages of runs, newest first; `state="dead"`: those that were given up."""
        return self.store.list_outbox(Letters(tenant, run_id, state, limit))

    def resend(self, message_id: str, *, by: str, tenant: str | None = None) -> Message:
        """Have a dead message tried again at once, with a fresh budget of tries.

        Its id stays the same, so a receiver that had seen it after all tells the repeat.

        Raises:
            NotFound: no such message for this tenant.
            Conflict: it is not dead: it has arrived, or is still being tried.
        """
        return self.store.resend(_sane(message_id), by=by, tenant=tenant)

    def resend_dead(self, *, by: str, tenant: str | None = None, run_id: str | None = None) -> int:
        """Have all dead messages tried again; returns how many."""
        return self.store.resend_dead(by=by, tenant=tenant, run_id=run_id)

    # --- people ------------------------------------------------------------------------

    def questions(
        self,
        *,
        tenant: str | None = None,
        run_id: str | None = None,
        state: QuestionState | str | None = QuestionState.OPEN,
        role: str | None = None,
        agents: Collection[str] | None = None,
        after: Question | None = None,
        limit: int = 100,
    ) -> list[Question]:
        """Return questions, oldest first; by default the open ones, from the first.

        With `after`, those that were asked later than that one.
        """
        wanted = None if state is None else QuestionState(state)
        place = None if after is None or after.asked_at is None else (after.asked_at, after.id)
        return self.store.list_questions(
            Inbox(
                tenant=tenant,
                run_id=run_id,
                state=wanted,
                role=role,
                agents=agents,
                after=place,
                limit=limit,
            )
        )

    def question(self, question_id: str, tenant: str | None = None) -> Question:
        """Return one question.

        Raises:
            NotFound: no such question for this tenant.
        """
        return self.store.question(_sane(question_id), tenant)

    def decide(
        self,
        question_id: str,
        decision: Decision,
        *,
        tenant: str | None = None,
        roles: Collection[str] | None = None,
    ) -> Question:
        """Give a question its one answer; the run goes on when no question of it is open.

        The first decision wins; the same one again is a success that changes nothing. Where
        several people must approve, the question stays open until they have. `roles` are those
        of who decides; without them anybody may.

        Raises:
            NotFound: no such question for this tenant.
            Forbidden: none of the roles may decide it.
            BadInput: the decision doesn't fit the question, which stays open.
            AlreadyDecided, NotWaiting: a different decision stands, or the time is over.
        """
        question = self.store.question(_sane(question_id), tenant)
        checked = _checked(question, decision, roles)
        approval_id = str(self.services.chance.uuid())
        return self.store.decide(question_id, checked, approval_id=approval_id, tenant=tenant)

    def delegate(
        self,
        question_id: str,
        *,
        by: str,
        role: str | None = None,
        person: str | None = None,
        tenant: str | None = None,
        roles: Collection[str] | None = None,
    ) -> Question:
        """Hand a question to another role, or to a person by name.

        Its role may, whom it was handed to may, and an operator: so that one which was handed
        to nobody real finds its way back. What was approved so far stays.

        Raises:
            NotFound: no such question for this tenant.
            Forbidden: none of the roles may hand it over.
            BadInput: neither a role nor a person is named, or both, or a role that no key has.
            NotWaiting: it is not open any more.
        """
        if (role is None) == (person is None):
            raise BadInput("a question is handed to a role or to a person: name one of them")
        check_name("who hands it over", by)
        check_name("who it is handed to", person if role is None else role)
        question = self.store.question(_sane(question_id), tenant)
        if roles is not None and not may_hand_over(question, by, roles):
            raise Forbidden(f"handing over question {question.id}", question.role or SUPERVISOR)
        if role is not None:
            check_approver(role)
        return self.store.delegate(question_id, role=role, person=person, by=by, tenant=tenant)

    def confirm(
        self,
        event: Mapping[str, Any],
        *,
        by: str,
        tenant: str | None = None,
        roles: Collection[str] | None = None,
    ) -> list[Question]:
        """Take AgentScope's `USER_CONFIRM_RESULT`: decide what it answers, all or none.

        `reply_id` is the run's id; see `langgraph_durable.agentscope`.

        Raises:
            BadInput: it is malformed, or an answer doesn't fit its question.
            NotFound, Forbidden, Conflict: as `decide_all`.
        """
        run_id = _sane(agentscope.reply_id(event))
        self.get(run_id, tenant)
        asked = self.questions(run_id=run_id, tenant=tenant, state=None, limit=_ALL)
        answers = agentscope.decisions(event, asked, by)
        return self.decide_all(run_id, answers, tenant=tenant, roles=roles)

    def parked(self, tenant: str | None = None, *, limit: int = 100) -> list[Parked]:
        """Return the calls that wait for a person, the oldest first, in one query."""
        return self.store.parked(tenant, limit)

    def rules(
        self, tenant: str | None = None, *, agents: Collection[str] | None = None
    ) -> list[StandingRule]:
        """Return the rules that decisions carried, oldest first, ended ones too.

        With `agents`, those that came with questions of their runs.
        """
        return self.store.list_rules(tenant, agents)

    def revoke_rule(self, rule_id: str, *, by: str, tenant: str | None = None) -> StandingRule:
        """End a rule that a decision carried; again changes nothing.

        Raises:
            NotFound: no such rule for this tenant.
        """
        return self.store.revoke_rule(_sane(rule_id), by=by, tenant=tenant)

    def decide_all(
        self,
        run_id: str,
        decisions: Decision | Mapping[str, Decision],
        *,
        tenant: str | None = None,
        roles: Collection[str] | None = None,
    ) -> list[Question]:
        """Decide a run's questions together: all of them or none.

        One decision is for every open question; a mapping names each question's own.

        Raises:
            NotFound: no such run for this tenant, or a named question isn't one of it.
            Forbidden: one of them is for another role.
            BadInput: one of the decisions doesn't fit its question.
            Conflict: the run waits for nobody, or a named question was decided otherwise.
        """

        def check(question: Question, decision: Decision) -> Decision:
            return _checked(question, decision, roles)

        return self.store.decide_all(
            _sane(run_id),
            decisions,
            check=check,
            new_id=lambda: str(self.services.chance.uuid()),
            tenant=tenant,
        )


def _of_one_currency(prices: Mapping[str, Price]) -> dict[str, Price]:
    currencies = sorted({price.currency for price in prices.values()})
    if len(currencies) > 1:
        raise BadInput(f"prices are all in one currency, not in {' and '.join(currencies)}")
    return dict(prices)


def _checked(question: Question, decision: Decision, roles: Collection[str] | None) -> Decision:
    """Return a decision as it is to be stored, or refuse it while the question stays open."""
    _may_decide(question, decision.by, roles)
    if decision.arguments is not None:
        arguments = restored(decision.arguments, question.shown, question.payload)
        decision = replace(decision, arguments=arguments)
    _fits(question, decision)
    return replace(decision, rules=[_tied(question, decision, rule) for rule in decision.rules])


def _may_decide(question: Question, by: str, roles: Collection[str] | None) -> None:
    if roles is None or may_answer(question, by, roles):
        return
    what = f"deciding question {question.id}"
    if question.person is not None:
        raise Forbidden(f"{what}, which was handed to {question.person},", "of that person")
    raise Forbidden(what, question.role or SUPERVISOR)


def _tied(question: Question, decision: Decision, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a decision's rule, tied to the tenant and the tool of its question.

    Who decides about one tool says nothing about others, and nobody speaks for other tenants.
    """
    if question.kind != "tool":
        raise BadInput(f"question {question.id} is about no tool; no rule can come with its answer")
    rule = Rule.from_data(data)
    server, _, bare = question.tool.partition(".")
    if rule.tool not in ("*", bare, question.tool) or rule.server not in ("*", server):
        raise BadInput(f"a rule that comes with this decision is about {question.tool}")
    if rule.tenant not in ("*", question.tenant):
        raise BadInput(f"a rule that comes with this decision is for tenant {question.tenant}")
    if decision.choice == "reject" and rule.verdict == "allow":
        raise BadInput("a refusal does not come with a rule that allows")
    return replace(rule, tenant=question.tenant, tool=question.tool).to_data()


def _pauses() -> Iterable[float]:
    yield from _POLL_SECONDS
    while True:
        yield _POLL_SECONDS[-1]


def _sane(id_: str) -> str:
    """An id that can't exist is simply not found; no database is asked with a NUL in it."""
    return (
        id_
        if isinstance(id_, str) and id_.isprintable() and len(id_) <= MAX_NAME_CHARACTERS
        else ""
    )


def _fits(question: Question, decision: Decision) -> None:
    if not decision.by:
        raise BadInput(f"a decision on question {question.id} must say who made it")
    if question.kind == "interrupt":
        in_kind = answer_in_kind(question.payload, decision)
        if in_kind is not None:  # LangChain's middleware asked: what counts is what it gets
            _validate(question, in_kind)
            return
    if decision.choice not in question.allowed:
        raise BadInput(
            f"question {question.id} takes {' or '.join(question.allowed)}, not {decision.choice!r}"
        )
    if decision.choice == "edit":
        if decision.arguments is None:
            raise BadInput(f"an edit of question {question.id} must bring the arguments")
        _validate(question, dict(decision.arguments))
    elif decision.choice == "respond":
        _validate(question, decision.value)


def _validate(question: Question, value: Any) -> None:
    if question.schema is None:
        return
    try:
        jsonschema.validate(value, dict(question.schema))
    except jsonschema.SchemaError as error:
        raise BadInput(
            f"question {question.id}: its own schema is wrong: {error.message}"
        ) from error
    except jsonschema.ValidationError as error:
        where = "/".join(str(part) for part in error.absolute_path) or "the value"
        raise BadInput(
            f"question {question.id}: {where} doesn't fit what was asked for: {error.message}"
        ) from error
