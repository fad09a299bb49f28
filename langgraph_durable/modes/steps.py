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
from langgraph_durable.errors import CodeChanged, DurableError, QuestionSwallowed
from langgraph_durable.modes.ending import Ending
from langgraph_durable.modes.interrupts import (
    Known,
    Put,
    Watch,
    is_answered,
    question_of,
    unsurfaced,
    untaken_answer,
    value_for_graph,
    watching,
)
from langgraph_durable.modes.nodes import asked_from
from langgraph_durable.modes.values import context_for
from langgraph_durable.runs import Question


class LiveCopies:
    """A serializer that keeps Python objects: copied in and out, never turned to bytes.

    The saver lives for one pass, in memory. Copies keep a node that changes its state in
    place from changing what the next round starts from; what can't be copied is shared.
    """

    def dumps_typed(self, obj: Any) -> tuple[str, Any]:
        """Return a copy."""
        return "live", _copied(obj)

    def loads_typed(self, data: tuple[str, Any]) -> Any:
        """Return a copy of the copy."""
        return _copied(data[1])


def _copied(obj: Any) -> Any:
    try:
        return copy.deepcopy(obj)
    except Exception:  # a client, a lock: whatever its own __deepcopy__ raises
        return obj


async def run(agent: Agent, ctx: RunContext, questions: Sequence[Question]) -> Ending:
    """Replay the graph once.

    Raises:
        PassEnded: the run waits, is handed back, or its lease is lost.
        CodeChanged: a question was answered, and the code that asked it is gone.
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
        self.watch = Watch(ctx.state, ctx.services.types)
        self.past = [q for q in questions if q.kind == "interrupt"]
        self.answers: dict[tuple[str, str], list[Question]] = {}  # (path, digest) -> in order
        for question in self.past:
            if is_answered(question):
                self.answers.setdefault((_path(question), question.digest), []).append(question)
        self.graph = agent.graph.copy({"checkpointer": _memory() if self.past else None})
        self.fed: set[tuple[str, str, int]] = set()  # (path, digest, occurrence)

    async def go(self) -> Ending:
        """Run rounds until the graph ends or a question has no answer."""
        self._refuse_changed_code()
        self.ctx.state.begin_round()
        given: Any = self.ctx.run.input
        while True:
            self.watch.put.clear()
            try:
                result = await self._invoke(given)
            except GraphDrained:
                return Ending(drained=True)
            swallowed = unsurfaced(self.watch, result.interrupts)
            if swallowed:
                raise QuestionSwallowed(swallowed[0].path)
            if not result.interrupts:
                self._refuse_untaken()
                return Ending(value=result.value)
            answers = self._answers(result.interrupts)
            if not answers:
                return Ending(asked=self._asked())
            given = Command(resume=answers)
            self.ctx.state.next_round()

    def _refuse_changed_code(self) -> None:
        for path, _ in self.answers:
            missing = asked_from(self.graph, path)
            if missing is not None:
                raise CodeChanged(
                    self.ctx.agent,
                    f"node {missing!r}",
                    "it asked a question, and nothing would take the answer.",
                )

    def _refuse_untaken(self) -> None:
        taken = {path for path, *_ in self.fed}
        for (path, _), questions in self.answers.items():
            if path not in taken:
                raise untaken_answer(self.ctx.agent, questions[-1])

    async def _invoke(self, given: Any) -> Any:
        control = RunControl()
        self.ctx.state.on_drain(control.request_drain)
        try:
            return await self.graph.ainvoke(
                given,
                {
                    "configurable": {"thread_id": self.ctx.run_id, "__pregel_strict_resume": True},
                },
                context=context_for(self.agent, self.ctx),
                durability="sync" if self.past else None,
                control=control,
                version="v2",
            )
        except Exception:
            # an interrupt of a sibling is not in what came out, but it was put all the same
            for question in self._asked():
                self.ctx.state.asked.setdefault(question.key, question)
            raise

    def _answers(self, interrupts: Iterable[Interrupt]) -> dict[str, Any]:
        answers = {}
        for interrupt_ in interrupts:
            if interrupt_.id in answers:  # a node that awaits tasks shows theirs once more
                continue
            put = self.watch.surfaced(interrupt_)
            question = put and self._answer(put)
            if put and question:
                which = (put.path, put.digest, put.occurrence)
                if which in self.fed:
                    raise DurableError(f"{put.path} asks again for what was answered")
                self.fed.add(which)
                answers[put.id] = value_for_graph(question)
                self.watch.known[put.id] = Known(put.digest, answers[put.id])
        return answers

    def _answer(self, put: Put) -> Question | None:
        """Return the answer to a question: the n-th of its place and payload to the n-th."""
        given = self.answers.get((put.path, put.digest), [])
        return given[put.occurrence] if put.occurrence < len(given) else None

    def _asked(self) -> tuple[Question, ...]:
        """Return what was put and has no answer yet, as questions."""
        asked: dict[str, Question] = {}
        for put in self.watch.put:
            if self._answer(put) is None:
                asked.setdefault(put.id, question_of(put, str(self.ctx.services.chance.uuid())))
        return tuple(asked.values())


def _path(question: Question) -> str:
    return question.key.rpartition("#")[0]


def _memory() -> InMemorySaver:
    return InMemorySaver(serde=LiveCopies())
