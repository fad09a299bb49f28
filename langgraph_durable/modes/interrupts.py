"""LangGraph's `interrupt()` and our questions, matched by path and digest.

LangGraph hands answers out by position: the n-th `interrupt()` of a task gets its n-th
answer, whatever it asks this time. So a payload that differs on resume would be executed on
an approval of another one. And an `except` around `interrupt()` hides that anything was
asked. Neither can be seen from outside: this module watches the call itself, and a call
gets the answer to the payload that it shows, or none.

The watch hangs on a private name: `interrupt()` takes its position from
`LazyAtomicCounter.__call__`. A test pins that, so an upgrade that moves it is seen.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from langgraph._internal._constants import CONFIG_KEY_CHECKPOINT_NS as CHECKPOINT_NS
from langgraph._internal._constants import CONFIG_KEY_SCRATCHPAD as SCRATCHPAD
from langgraph._internal._constants import CONFIG_KEY_SEND as SEND
from langgraph._internal._constants import RESUME
from langgraph.pregel._algo import LazyAtomicCounter
from langgraph.types import Interrupt, interrupt
from pydantic import TypeAdapter
from xxhash import xxh3_128_hexdigest

from langgraph_durable.agents import kept_inside
from langgraph_durable.context import PassState
from langgraph_durable.errors import BadInput, CodeChanged, QuestionExpired
from langgraph_durable.modes import human_in_the_loop
from langgraph_durable.runs import Choice, Decision, Question, QuestionState, Refused
from langgraph_durable.values import Types, fingerprint


@dataclass(frozen=True, slots=True)
class Put:
    """An `interrupt()` that was called and has no answer."""

    id: str  # LangGraph's
    path: str
    slot: int  # which answer of its task it waits for
    occurrence: int  # how many of the task's answers are for the very same payload
    payload: Any
    digest: str
    schema: Mapping[str, Any] | None

    @property
    def key(self) -> str:
        """The question's stable name in the run."""
        return f"{self.path}#{self.slot}"


@dataclass(frozen=True, slots=True)
class Known:
    """An answer, and the digest of the payload that it was given for."""

    digest: str
    answer: Any


@dataclass(slots=True)
class Watch:
    """Sees each `interrupt()` of a pass, and gives it the answer to its own question.

    A task's answers lie in slots, in the order in which they were given. `known` says for
    which payload each was given; a call takes the first free slot of its payload. The answer
    is ours, not LangGraph's copy of it, which went through another encoding.
    """

    state: PassState
    types: Types
    known: dict[str, Known] = field(default_factory=dict)  # by interrupt id
    put: list[Put] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)  # ids whose task asked again in this pass
    _slots: dict[LazyAtomicCounter, set[int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def see(self, counter: LazyAtomicCounter, frame: FrameType) -> int:
        """Return the slot of a call of `interrupt()`; beyond the last one, it asks.

        Raises:
            NotEncodable: the payload can't be shown to a person.
            BadInput: in steps mode, inside a graph that keeps its own state.
        """
        local = frame.f_locals
        conf, payload = local["conf"], local["value"]
        namespace, answers = conf[CHECKPOINT_NS], conf[SCRATCHPAD].resume
        if self.state.places.counts_visits:
            _refuse_kept(namespace)
        digest = fingerprint(payload, types=self.types, where="the payload of interrupt()")
        ids = [interrupt_id(namespace, slot) for slot in range(len(answers))]
        path = self.state.places.of(namespace)
        self.state.interrupts.add(path)
        with self._lock:  # sync tools of one task call from several threads
            self.reached.update(ids)
            used = self._slots.setdefault(counter, set())
            same = [slot for slot, id_ in enumerate(ids) if self._is_for(id_, digest)]
            slot = next((slot for slot in same if slot not in used), None)
            if slot is not None:
                used.add(slot)
                if ids[slot] in self.known:
                    answers[slot] = self.known[ids[slot]].answer
                return slot
            if self.state.is_left_behind():
                return len(answers)  # its task has run again since, and asks itself
            schema = _json_schema(local["response_schema"])
            id_ = interrupt_id(namespace, len(answers))
            self.put.append(Put(id_, path, len(answers), len(same), payload, digest, schema))
        self.state.interrupted(namespace, path)
        if answers:  # all of them, whichever slots this execution came by
            conf[SEND]([(RESUME, list(answers))])
        return len(answers)

    def _is_for(self, id_: str, digest: str) -> bool:
        return id_ not in self.known or self.known[id_].digest == digest

    def surfaced(self, interrupt_: Interrupt) -> Put | None:
        """Return what put an interrupt that came out of the graph."""
        same = [put for put in self.put if put.id == interrupt_.id]
        shown = [put for put in same if put.payload is interrupt_.value]
        return next(iter(shown or same), None)


def interrupt_id(namespace: str, slot: int) -> str:
    """Return LangGraph's id of a task's n-th question (private rule, pinned by a test)."""
    name = f"{namespace}|{slot}" if slot else namespace
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
        watch = _watch.get()
        caller = sys._getframe(1)
        if watch is not None and caller.f_code is interrupt.__code__:
            return watch.see(self, caller)
        return count(self)

    LazyAtomicCounter.__call__ = counted  # type: ignore[method-assign]


_install()


def _refuse_kept(namespace: str) -> None:
    """Refuse a pause inside a graph with checkpointer=True that registration could not see.

    Its namespace has the bare name of the node that calls it, the same in every pass.
    """
    *callers, _ = namespace.split("|")
    for part in callers:
        if ":" not in part and not part.isdigit():
            raise BadInput(kept_inside(part))


# --- questions <-> interrupts ----------------------------------------------------------


def question_of(put: Put, question_id: str) -> Question:
    """Return the question that shows an interrupt to people."""
    anything: tuple[Choice, ...] = ("respond", "approve", "reject", "edit")
    allowed = human_in_the_loop.choices(put.payload, put.schema) or anything
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
    """Return the interrupts that were put but did not come out of the graph: swallowed.

    Of graphs and tasks that a node runs at once, LangGraph lets out the first one that asks;
    the others ask in their turn, when the node runs again. They are no longer among what was
    put. (A node that swallowed a pause is not let end: `PassState` sees to it.)
    """
    ids = {interrupt_.id for interrupt_ in surfaced}
    waiting = {_node(put) for put in watch.put if put.id in ids}
    watch.put[:] = [put for put in watch.put if put.id in ids or _node(put) not in waiting]
    return [put for put in watch.put if put.id not in ids]


def _node(put: Put) -> str:
    return put.path.partition("/")[0]


def latest(questions: Sequence[Question]) -> dict[str, Question]:
    """Return the last question of each interrupt id: one asked again replaces the earlier."""
    live = [q for q in questions if q.state is not QuestionState.CLOSED]
    return {q.interrupt_id: q for q in live if q.interrupt_id is not None}


def untaken_answer(agent: str, question: Question) -> CodeChanged:
    """Return the error of a run that ends while nothing took the answer to its question."""
    return CodeChanged(
        agent,
        f"code that asks {question.key!r}",
        "the question was answered, and nothing took the answer.",
    )


def is_answered(question: Question) -> bool:
    """Whether a person answered, or the time for it is over."""
    return question.state in (QuestionState.DECIDED, QuestionState.EXPIRED)


def value_for_graph(question: Question) -> Any:
    """Return what `interrupt()` returns for a decision.

    `respond` gives its value as it is, also None, False and {}. The others give a dict:
    `{"choice", "by", "reason", "arguments"}`, and to LangChain's middleware what it wants. An
    expired question gives its default, or for `on_expiry="reject"` a rejection by nobody.

    Raises:
        QuestionExpired: nobody answered in time, and the question was declared to fail.
    """
    if question.state is QuestionState.EXPIRED:
        if question.on_expiry == "default":
            return question.default
        if question.on_expiry == "reject":
            gone = Refused("", "nobody", expired=True)
            refusal = Decision.reject(gone.by, str(gone))
            in_kind = human_in_the_loop.answer_in_kind(question.payload, refusal)
            if in_kind is not None:
                return in_kind
            return {"choice": "reject", "by": gone.by, "reason": str(gone), "expired": True}
        raise QuestionExpired(question.key)
    decision = question.decision
    in_kind = decision and human_in_the_loop.answer_in_kind(question.payload, decision)
    if in_kind is not None:
        return in_kind
    if decision is None or decision.choice == "respond":
        return None if decision is None else decision.value
    given = {"choice": decision.choice, "by": decision.by, "reason": decision.reason}
    if decision.arguments is not None:
        given["arguments"] = dict(decision.arguments)  # type: ignore[assignment]  # edit
    return given
