"""Graph mode: a whole graph is one leased run; LangGraph's checkpointer does the inner resume.

Two stores know about a pause: ours (questions, decisions) and LangGraph's (checkpoints).
A crash can fall into any gap between them, so each pass first reads the graph's own state
and brings both together: what was asked and not recorded is recorded, what was decided and
not consumed is delivered, what was consumed is not delivered twice (facts §3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.constants import START
from langgraph.errors import GraphDrained
from langgraph.pregel import Pregel
from langgraph.runtime import RunControl
from langgraph.types import Command, Interrupt, StateSnapshot

from langgraph_durable.agents import Agent
from langgraph_durable.checkpoint import Savers
from langgraph_durable.checkpoint.state import STATE
from langgraph_durable.context import RunContext
from langgraph_durable.errors import CodeChanged, DurableError, NotEncodable, QuestionSwallowed
from langgraph_durable.modes.ending import Ending
from langgraph_durable.modes.interrupts import (
    Known,
    Watch,
    is_answered,
    latest,
    question_of,
    unsurfaced,
    untaken_answer,
    value_for_graph,
    watching,
)
from langgraph_durable.modes.nodes import missing_node, open_interrupts
from langgraph_durable.modes.values import context_for, settled_input
from langgraph_durable.runs import Question, thread_name
from langgraph_durable.values import fingerprint


async def run(
    agent: Agent, ctx: RunContext, questions: Sequence[Question], savers: Savers
) -> Ending:
    """Carry the thread's graph on by one pass.

    Raises:
        PassEnded: the run waits, is handed back, or its lease is lost.
        CodeChanged: the node that is to run next is gone; nothing was delivered.
        QuestionSwallowed: an `except` caught a pause, and the graph went on.
        NotEncodable: the state has something that no checkpoint can keep.
    """
    if agent.graph is None:
        raise DurableError(f"agent {agent.name!r} has no graph")
    async with savers.fenced(ctx.lease, ctx.state.secrets) as saver:
        # on a copy: the graph keeps the checkpointer that it was compiled with, and its store
        graph = agent.graph.copy({"checkpointer": saver})
        passage = _Passage(agent, ctx, questions, graph, saver)
        try:
            with watching(passage.watch):
                return await passage.go()
        except NotEncodable as error:
            if error.where != STATE:
                raise
            where = f"agent {agent.name!r}, {STATE}"
            raise NotEncodable(where, error.path, error.kind, error.way_out) from error


def thread_id(ctx: RunContext) -> str:
    """Return the thread's id in LangGraph's tables."""
    return thread_name(ctx.tenant, ctx.agent, ctx.thread)


class _Passage:
    """One pass."""

    def __init__(
        self,
        agent: Agent,
        ctx: RunContext,
        questions: Sequence[Question],
        graph: Pregel[Any, Any, Any, Any],
        saver: BaseCheckpointSaver[Any],
    ) -> None:
        self.agent, self.ctx, self.graph, self.saver = agent, ctx, graph, saver
        self.questions = latest(questions)
        self.past = questions
        self.watch = Watch(ctx.state, ctx.services.types)
        self.watch.known = {
            id_: Known(question.digest, value_for_graph(question))
            for id_, question in self.questions.items()
            if is_answered(question)
        }
        self.fed: set[str] = set()  # interrupt ids whose answers LangGraph was given
        self.config: Any = {
            # our id in the metadata: LangGraph ignores an input that is given twice under it
            "metadata": {"run_id": ctx.run_id},
            "configurable": {"thread_id": thread_id(ctx), "__pregel_strict_resume": True},
        }

    async def go(self) -> Ending:
        """Read where the graph stands, deliver what was decided, run, and read what came out."""
        state = await self.graph.aget_state(self.config, subgraphs=True)
        if not self._is_ours(state):
            return await self._rounds(settled_input(self.graph, state.values, self.ctx.run.input))
        await self._refuse_changed_code(state)
        # `next` leaves out tasks whose results are stored, so it is empty as well after a death
        # between the results of a superstep and the checkpoint behind it: there the graph goes on
        if not state.tasks:
            return Ending(value=self._output(state.values))  # it had ended; the record was lost
        go_on = self._resume(self._answers(await self._open(state)))
        if go_on is None and await self._waits_at_breakpoint(state):
            return Ending(asked=(self._breakpoint(state),))
        return await self._rounds(go_on)

    async def _rounds(self, given: Any) -> Ending:
        """Run; a question that comes out and has an answer gets it, in another round.

        So it is when the pause was lost on the way to LangGraph's store: the question was
        put and answered, and LangGraph asks it again under the same id.
        """
        self.ctx.state.begin_round()
        while True:
            try:
                result = await self._invoke(given)
            except GraphDrained:
                return Ending(drained=True)
            answers = self._answers(self._shown_before(result.interrupts))
            if not answers:
                break
            given = self._resume(answers)
            self.ctx.state.next_round()
            self.watch.put.clear()
        self._check(result.interrupts)
        if result.interrupts:
            return Ending(asked=self._asked())
        return await self._ended()

    async def _open(self, state: StateSnapshot) -> list[Interrupt]:
        """Return the interrupts that wait for an answer which somebody gave."""
        answered = [i for i in state.interrupts if i.id in self.watch.known]
        if not answered:
            return []
        still = await open_interrupts(self.saver, thread_id(self.ctx), state)
        return [i for i in answered if i.id in still]

    def _is_ours(self, state: StateSnapshot) -> bool:
        return (state.metadata or {}).get("run_id") == self.ctx.run_id

    async def _refuse_changed_code(self, state: StateSnapshot) -> None:
        missing = await missing_node(self.graph, self.saver, state)
        if missing is not None:
            raise CodeChanged(
                self.ctx.agent,
                f"node {missing!r}",
                "the run stopped there, and LangGraph would pass over it and call the run finished.",
            )

    def _answers(self, pending: Iterable[Interrupt]) -> dict[str, Any]:
        new = {interrupt_.id for interrupt_ in pending} & self.watch.known.keys() - self.fed
        self.fed |= new
        return {id_: self.watch.known[id_].answer for id_ in new}

    def _shown_before(self, surfaced: Iterable[Interrupt]) -> Iterable[Interrupt]:
        """Return the interrupts that show what their questions showed."""
        for interrupt_ in surfaced:
            put, known = self.watch.surfaced(interrupt_), self.watch.known.get(interrupt_.id)
            if put is not None and known is not None and put.digest == known.digest:
                yield interrupt_

    @staticmethod
    def _resume(answers: dict[str, Any]) -> Command[Any] | None:
        return Command(resume=answers) if answers else None

    async def _invoke(self, given: Any) -> Any:
        control = RunControl()
        self.ctx.state.on_drain(control.request_drain)
        try:
            return await self.graph.ainvoke(
                given,
                self.config,
                context=context_for(self.agent, self.ctx),
                durability="sync",
                control=control,
                version="v2",
            )
        except Exception:
            # an interrupt of a sibling is not in what came out, but it was put all the same
            for question in self._asked():
                self.ctx.state.asked.setdefault(question.key, question)
            raise

    def _check(self, surfaced: Iterable[Interrupt]) -> None:
        swallowed = unsurfaced(self.watch, surfaced)
        if swallowed:
            raise QuestionSwallowed(swallowed[0].path)
        untaken = self.fed - self.watch.reached
        if untaken:
            raise untaken_answer(self.ctx.agent, self.questions[min(untaken)])

    async def _ended(self) -> Ending:
        """An empty list of interrupts proves nothing: the graph must have reached its end."""
        state = await self.graph.aget_state(self.config, subgraphs=True)
        if not state.next:
            await self._refuse_changed_code(state)
            return Ending(value=self._output(state.values))
        if self._has_breakpoints():
            return Ending(asked=(self._breakpoint(state),))
        raise DurableError(f"the graph returned, but {', '.join(state.next)} should run next")

    def _output(self, values: Any) -> Any:
        """Return the graph's output as `ainvoke` does, from the state that is stored."""
        keys = self.graph.output_channels
        if isinstance(self.graph.stream_channels_asis, str) or not isinstance(values, Mapping):
            return values  # one channel, as that of an @entrypoint
        if isinstance(keys, str):
            return values.get(keys)
        return {key: values[key] for key in keys if key in values}

    def _asked(self) -> tuple[Question, ...]:
        """Return what was put and has no answer yet, as questions."""
        asked: dict[str, Question] = {}
        for put in self.watch.put:
            known = self.watch.known.get(put.id)
            if known is None or known.digest != put.digest:
                asked.setdefault(put.id, question_of(put, str(self.ctx.services.chance.uuid())))
        return tuple(asked.values())

    # --- interrupt_before and interrupt_after ------------------------------------------

    def _has_breakpoints(self) -> bool:
        return bool(self.graph.interrupt_before_nodes or self.graph.interrupt_after_nodes)

    async def _waits_at_breakpoint(self, state: StateSnapshot) -> bool:
        """Whether the graph stopped at a breakpoint that nobody has let it pass yet."""
        if not self._has_breakpoints() or state.interrupts:
            return False
        key = self._breakpoint_key(state)
        if any(question.key == key and is_answered(question) for question in self.past):
            return False
        return await self._is_at_rest(state)

    async def _is_at_rest(self, state: StateSnapshot) -> bool:
        """Whether a breakpoint is here, or the run just died here."""
        if _names_one(self.graph.interrupt_before_nodes, state.next):
            return True
        if not self.graph.interrupt_after_nodes or state.parent_config is None:
            return False
        before = await self.graph.aget_state(state.parent_config)
        done = [task.name for task in before.tasks]
        return _names_one(self.graph.interrupt_after_nodes, done)

    def _breakpoint(self, state: StateSnapshot) -> Question:
        payload = {"next": list(state.next)}
        return Question(
            id=str(self.ctx.services.chance.uuid()),
            key=self._breakpoint_key(state),
            kind="breakpoint",
            payload=payload,
            digest=fingerprint(payload, types=self.ctx.services.types),
            allowed=("approve",),
        )

    def _breakpoint_key(self, state: StateSnapshot) -> str:
        return f"breakpoint:{(state.metadata or {}).get('step', 0)}"


def _names_one(nodes: Any, names: Iterable[str]) -> bool:
    return any(nodes == "*" or name in nodes for name in names if name != START)
