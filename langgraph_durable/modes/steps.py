"""Steps mode: the graph runs from its start and the journal answers what is recorded.

There is no persistent checkpointer. Native `interrupt()` works all the same, in rounds: a
saver in memory holds the graph between them, each interrupt is matched with its decision by
its stable path, and the graph is resumed with the answers until it ends or something is
unanswered. A run that never asked that way takes the fast path, without a saver.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Command, Interrupt

from langgraph_durable.agents import Agent
from langgraph_durable.context import RunContext
from langgraph_durable.errors import DurableError, QuestionSwallowed
from langgraph_durable.modes.ending import Ending
from langgraph_durable.modes.interrupts import (
    PayloadChanged,
    Put,
    Watch,
    is_answered,
    question_of,
    unsurfaced,
    value_for_graph,
    watching,
)
from langgraph_durable.runs import Question


class LiveCopies:
    """A serializer that keeps Python objects: copied in and out, never turned to bytes.

    The saver lives for one pass, in memory. Copies keep a node that changes its state in
    place from changing what the next round starts from.
    """

    def dumps_typed(self, obj: Any) -> tuple[str, Any]:
        """Return a copy."""
        return "live", copy.deepcopy(obj)

    def loads_typed(self, data: tuple[str, Any]) -> Any:
        """Return a copy of the copy."""
        return copy.deepcopy(data[1])


async def run(agent: Agent, ctx: RunContext, questions: Sequence[Question]) -> Ending:
    """Replay the graph once.

    Raises:
        PassEnded: the run waits, is handed back, or its lease is lost.
        QuestionSwallowed: an `except` caught a pause, and the graph went on.
    """
    passage = _Passage(agent, ctx, questions)
    with watching(passage.watch):
        return await passage.go()


class _Passage:
    """One pass, of one or more rounds."""

    def __init__(self, agent: Agent, ctx: RunContext, questions: Sequence[Question]) -> None:
        if agent.graph is None:
            raise DurableError(f"agent {agent.name!r} has no graph")
        self.agent, self.ctx = agent, ctx
        self.watch = Watch(ctx.state.places, ctx.services.types)
        asked_before = any(question.kind == "interrupt" for question in questions)
        self.graph = agent.graph.copy({"checkpointer": _memory() if asked_before else None})
        self.can_resume = asked_before

    async def go(self) -> Ending:
        """Run rounds until the graph ends or a question has no answer."""
        given: Any = self.ctx.run.input
        fed: set[str] = set()
        while True:
            try:
                result = await self._invoke(given)
            except PayloadChanged:
                return Ending(asked=self._asked(self.watch.changed.values()))
            except GraphDrained:
                return Ending(drained=True)
            self._check(result.interrupts)
            if not result.interrupts:
                return Ending(value=result.value)
            answers = self._answers(result.interrupts)
            if not answers.keys() - fed:
                return self._parked()
            fed |= answers.keys()
            given = Command(resume=answers)
            self.ctx.state.round += 1

    def _parked(self) -> Ending:
        asked = self._asked(self.watch.put.values())
        if not asked:
            raise DurableError("the graph asks again for what was answered; it can't go on")
        return Ending(asked=asked)

    async def _invoke(self, given: Any) -> Any:
        control = RunControl()
        self.ctx.state.on_drain(control.request_drain)
        self.watch.put.clear()
        try:
            return await self.graph.ainvoke(
                given,
                {
                    "callbacks": [self.ctx.state.places],
                    "configurable": {"thread_id": self.ctx.run_id, "__pregel_strict_resume": True},
                },
                context=self.agent.context if self.agent.context is not None else self.ctx,
                durability="exit" if self.can_resume else None,
                control=control,
                version="v2",
            )
        except Exception:
            # an interrupt of a sibling is not in what came out, but it was put all the same
            if self.ctx.state.is_parked:
                for question in self._asked(self.watch.put.values()):
                    self.ctx.state.asked.setdefault(question.key, question)
            raise

    def _check(self, interrupts: Iterable[Interrupt]) -> None:
        swallowed = unsurfaced(self.watch, interrupts)
        if swallowed and not self.ctx.state.is_parked:
            raise QuestionSwallowed(swallowed[0].path)

    def _answers(self, interrupts: Iterable[Interrupt]) -> dict[str, Any]:
        if not self.can_resume:
            return {}
        answers = {}
        for interrupt_ in interrupts:
            put = self.watch.put.get(interrupt_.id)
            question = put and self.ctx.journal.answer(put.key, put.digest)
            if put and question and is_answered(question):
                answers[put.id] = value_for_graph(question)
                self.watch.expected[put.id] = put.digest
        return answers

    def _asked(self, puts: Iterable[Put]) -> tuple[Question, ...]:
        new_id = self.ctx.services.chance.uuid
        unanswered = [p for p in puts if self.ctx.journal.answer(p.key, p.digest) is None]
        return tuple(question_of(put, str(new_id())) for put in unanswered)


def _memory() -> InMemorySaver:
    return InMemorySaver(serde=LiveCopies())
