"""LangGraph's `interrupt()` and our questions, matched by path and digest.

LangGraph hands answers out by position: the n-th `interrupt()` of a task gets its n-th
answer, whatever it asks this time. So a payload that differs on resume would be executed on
an approval of another one. And an `except` around `interrupt()` hides that anything was
asked. Neither can be seen from outside: this module watches the call itself.

The watch hangs on a private name: `interrupt()` takes its position from
`LazyAtomicCounter.__call__`. A test pins that, so an upgrade that moves it is seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from langgraph.pregel._algo import LazyAtomicCounter
from langgraph.types import Interrupt, interrupt
from pydantic import TypeAdapter
from xxhash import xxh3_128_hexdigest

from langgraph_durable.context import Places
from langgraph_durable.errors import PassEnded, QuestionExpired
from langgraph_durable.runs import Choice, Question, QuestionState, Refused
from langgraph_durable.values import Types, fingerprint


class PayloadChanged(PassEnded):
    """A node asks something else than what its answer was given for: it is asked again."""


@dataclass(frozen=True, slots=True)
class Put:
    """An `interrupt()` that was called and had no answer (or one for another payload)."""

    id: str
    path: str
    position: int  # which question of its task
    payload: Any
    digest: str
    schema: Mapping[str, Any] | None

    @property
    def key(self) -> str:
        """The question's stable name in the run."""
        return f"{self.path}#{self.position}"


@dataclass(slots=True)
class Watch:
    """Sees each `interrupt()` of a pass."""

    places: Places
    types: Types
    expected: dict[str, str] = field(default_factory=dict)  # interrupt id -> digest answered
    put: dict[str, Put] = field(default_factory=dict)  # by interrupt id
    changed: dict[str, Put] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)

    def expect(self, digests: Mapping[str, str]) -> None:
        """Begin a round: these interrupts have answers, each for one payload."""
        self.expected.update(digests)
        self.put.clear()

    def see(self, position: int, frame: FrameType) -> None:
        """Take note of a call of `interrupt()`, before it answers or asks.

        Raises:
            PayloadChanged: its answer was given for another payload.
            NotEncodable: the payload can't be shown to a person.
        """
        local = frame.f_locals
        conf = local["conf"]
        namespace, scratchpad = conf["checkpoint_ns"], conf["__pregel_scratchpad"]
        seen = Put(
            id=interrupt_id(namespace, position),
            path=self.places.of(namespace),
            position=position,
            payload=local["value"],
            digest=fingerprint(
                local["value"], types=self.types, where="the payload of interrupt()"
            ),
            schema=_json_schema(local["response_schema"]),
        )
        if position >= len(scratchpad.resume):
            self.put[seen.id] = seen
            return
        self.answered.add(seen.id)
        if self.expected.get(seen.id, seen.digest) != seen.digest:
            self.changed[seen.id] = seen
            raise PayloadChanged(f"the question of {seen.path} changed since it was answered")


def interrupt_id(namespace: str, position: int) -> str:
    """Return LangGraph's id of the n-th interrupt of a task (private rule, pinned by a test)."""
    name = f"{namespace}|{position}" if position else namespace
    return xxh3_128_hexdigest(name.encode())


def _json_schema(schema: Any) -> Mapping[str, Any] | None:
    if schema is None or isinstance(schema, dict):
        return schema
    return TypeAdapter(schema).json_schema()


_watch: ContextVar[Watch | None] = ContextVar("langgraph_durable_watch", default=None)


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Watch the interrupts of everything that is called inside."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def _install() -> None:
    count = LazyAtomicCounter.__call__

    def counted(self: LazyAtomicCounter) -> int:
        position = count(self)
        watch = _watch.get()
        if watch is not None:
            caller = sys._getframe(1)
            if caller.f_code is interrupt.__code__:
                watch.see(position, caller)
        return position

    LazyAtomicCounter.__call__ = counted  # type: ignore[method-assign]


_install()


# --- questions <-> interrupts ----------------------------------------------------------


def question_of(put: Put, question_id: str) -> Question:
    """Return the question that shows an interrupt to people."""
    allowed: tuple[Choice, ...] = ("respond", "approve", "reject", "edit")
    return Question(
        id=question_id,
        key=put.key,
        kind="interrupt",
        payload=put.payload,
        digest=put.digest,
        allowed=allowed,
        schema=put.schema,
        interrupt_id=put.id,
    )


def unsurfaced(watch: Watch, surfaced: Iterable[Interrupt]) -> list[Put]:
    """Return the interrupts that were put but did not come out of the graph: swallowed."""
    ids = {interrupt_.id for interrupt_ in surfaced}
    return [put for put in watch.put.values() if put.id not in ids]


def latest(questions: Sequence[Question]) -> dict[str, Question]:
    """Return the last question of each interrupt id: one asked again replaces the earlier."""
    return {q.interrupt_id: q for q in questions if q.interrupt_id is not None}


def is_answered(question: Question) -> bool:
    """Whether a person answered, or the time for it is over."""
    return question.state in (QuestionState.DECIDED, QuestionState.EXPIRED)


def value_for_graph(question: Question) -> Any:
    """Return what `interrupt()` returns for a decision.

    `respond` gives its value as it is, also None, False and {}. The others give a dict:
    `{"choice", "by", "reason", "arguments"}`. An expired question gives its default, or
    for `on_expiry="reject"` a rejection by nobody.

    Raises:
        QuestionExpired: nobody answered in time, and the question was declared to fail.
    """
    if question.state is QuestionState.EXPIRED:
        if question.on_expiry == "default":
            return question.default
        if question.on_expiry == "reject":
            gone = Refused("", "nobody", expired=True)
            return {"choice": "reject", "by": gone.by, "reason": str(gone), "expired": True}
        raise QuestionExpired(question.key)
    decision = question.decision
    if decision is None or decision.choice == "respond":
        return None if decision is None else decision.value
    given = {"choice": decision.choice, "by": decision.by, "reason": decision.reason}
    if decision.arguments is not None:
        given["arguments"] = dict(decision.arguments)  # type: ignore[assignment]  # edit
    return given
