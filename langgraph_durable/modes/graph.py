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
from langgraph.errors import GraphDrained
from langgraph.pregel import Pregel
from langgraph.runtime import RunControl
from langgraph.types import Command, Interrupt, StateSnapshot

from langgraph_durable.agents import Agent
from langgraph_durable.checkpoint import Savers
from langgraph_durable.context import RunContext
from langgraph_durable.errors import CodeChanged, DurableError, QuestionSwallowed
from langgraph_durable.modes.ending import Ending
from langgraph_durable.modes.interrupts import (
    PayloadChanged,
    Put,
    Watch,
    is_answered,
    latest,
    question_of,
    unsurfaced,
    value_for_graph,
    watching,
)
from langgraph_durable.modes.nodes import missing_node
from langgraph_durable.runs import Question
from langgraph_durable.values import fingerprint


async def run(
    agent: Agent, ctx: RunContext, questions: Sequence[Question], savers: Savers
) -> Ending:
    """Carry the thread's graph on by one pass.

    Raises:
        PassEnded: the run waits, is handed back, or its lease is lost.
        CodeChanged: the node that is to run next is gone; nothing was delivered.
        QuestionSwallowed: an `except` caught a pause, and the graph went on.
    """
    if agent.graph is None:
        raise DurableError(f"agent {agent.name!r} has no graph")
    async with savers.fenced(ctx.lease) as saver:
        # on a copy: the graph keeps the checkpointer that it was compiled with, and its store
        graph = agent.graph.copy({"checkpointer": saver})
        passage = _Passage(agent, ctx, questions, graph, saver)
        with watching(passage.watch):
            return await passage.go()


def thread_id(ctx: RunContext) -> str:
    """Return the thread's id in LangGraph's tables.

    It names tenant and agent, so that a thread id that belongs to another tenant, or to
    another graph, is simply another thread.
    """
    return f"{ctx.tenant}/{ctx.agent}/{ctx.thread}"


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
        self.watch = Watch(ctx.state.places, ctx.services.types)
        self.config: Any = {
            "callbacks": [ctx.state.places],
            # our id in the metadata: LangGraph ignores an input that is given twice under it
            "metadata": {"run_id": ctx.run_id},
            "configurable": {"thread_id": thread_id(ctx), "__pregel_strict_resume": True},
        }

    async def go(self) -> Ending:
        """Read where the graph stands, deliver what was decided, run, and read what came out."""
        state = await self.graph.aget_state(self.config, subgraphs=True)
        if not self._is_ours(state):
            return await self._invoke(self.ctx.run.input, {})
        await self._refuse_changed_code(state)
        if not state.next and not state.interrupts:
            return Ending(value=self._output(state))  # it had ended, and the record was lost
        answers = self._answers(state.interrupts)
        go_on: Command[Any] | None = Command(resume=answers) if answers else None
        if go_on is None and self._stands_at_breakpoint(state) and not self._may_pass(state):
            return Ending(asked=(self._breakpoint(state),))
        return await self._invoke(go_on, answers)

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
        answers = {}
        digests = {}
        for interrupt_ in pending:
            question = self.questions.get(interrupt_.id)
            if question is not None and is_answered(question):
                answers[interrupt_.id] = value_for_graph(question)
                digests[interrupt_.id] = question.digest
        self.watch.expect(digests)
        return answers

    async def _invoke(self, given: Any, answers: Mapping[str, Any]) -> Ending:
        control = RunControl()
        self.ctx.state.on_drain(control.request_drain)
        try:
            result = await self.graph.ainvoke(
                given,
                self.config,
                context=self.agent.context if self.agent.context is not None else self.ctx,
                durability="sync",
                control=control,
                version="v2",
            )
        except PayloadChanged:
            return Ending(asked=self._asked(self.watch.changed.values()))
        except GraphDrained:
            return Ending(drained=True)
        except Exception:
            # an interrupt of a sibling is not in what came out, but it was put all the same
            if self.ctx.state.is_parked:
                for question in self._asked(self.watch.put.values()):
                    self.ctx.state.asked.setdefault(question.key, question)
            raise
        self._check(result.interrupts, answers)
        if result.interrupts:
            return Ending(asked=self._asked(self.watch.put.values()))
        return await self._ended(result.value)

    def _check(self, surfaced: Iterable[Interrupt], answers: Mapping[str, Any]) -> None:
        swallowed = unsurfaced(self.watch, surfaced)
        if swallowed and not self.ctx.state.is_parked:
            raise QuestionSwallowed(swallowed[0].path)
        undelivered = answers.keys() - self.watch.answered - {i.id for i in surfaced}
        if undelivered:
            key = self.questions[min(undelivered)].key
            raise CodeChanged(
                self.ctx.agent,
                f"call of interrupt() for {key!r}",
                "its answer was handed to the graph and nothing took it.",
            )

    async def _ended(self, value: Any) -> Ending:
        """An empty list of interrupts proves nothing: the graph must have reached its end."""
        state = await self.graph.aget_state(self.config, subgraphs=True)
        if not state.next:
            await self._refuse_changed_code(state)
            return Ending(value=value)
        if self._stands_at_breakpoint(state):
            return Ending(asked=(self._breakpoint(state),))
        raise DurableError(f"the graph returned, but {', '.join(state.next)} should run next")

    def _output(self, state: StateSnapshot) -> Any:
        keys = self.graph.output_channels
        if isinstance(keys, str):
            return state.values.get(keys) if isinstance(state.values, Mapping) else state.values
        if not isinstance(state.values, Mapping):
            return state.values
        return {key: state.values[key] for key in keys if key in state.values}

    def _asked(self, puts: Iterable[Put]) -> tuple[Question, ...]:
        new_id = self.ctx.services.chance.uuid
        return tuple(question_of(put, str(new_id())) for put in puts)

    # --- interrupt_before and interrupt_after ------------------------------------------

    def _stands_at_breakpoint(self, state: StateSnapshot) -> bool:
        static = self.graph.interrupt_before_nodes or self.graph.interrupt_after_nodes
        return bool(static) and bool(state.next) and not state.interrupts

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

    def _may_pass(self, state: StateSnapshot) -> bool:
        """Whether this breakpoint was approved, or isn't one (the run just died here)."""
        mine = [q for q in self.past if q.key == self._breakpoint_key(state)]
        return not self._is_at_rest(state) or any(is_answered(q) for q in mine)

    def _is_at_rest(self, state: StateSnapshot) -> bool:
        before, after = self.graph.interrupt_before_nodes, self.graph.interrupt_after_nodes
        if before == "*" or after == "*" or after:
            return True
        return any(name in before for name in state.next)
