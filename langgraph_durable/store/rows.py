"""Rows become the values of `runs.py` here, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from langgraph_durable.encryption import is_sealed
from langgraph_durable.errors import DurableError
from langgraph_durable.redaction import Redaction
from langgraph_durable.runs import (
    Decision,
    Question,
    QuestionState,
    Refusal,
    Run,
    Signal,
    Status,
    Step,
    StepState,
    Usage,
)
from langgraph_durable.values import Types, decode, encode


@dataclass(frozen=True, slots=True)
class Codec:
    """The encoding of values, with the classes that the application registered.

    A reader without the application (the command line) may meet values of classes that it
    does not know; it shows their stored form instead of failing.
    """

    types: Types
    redaction: Redaction = field(default_factory=Redaction)

    def encode(self, value: Any, where: str) -> str:
        """Encode a value, or name where it came from."""
        return encode(value, types=self.types, where=where)

    def decode(self, text: str | None) -> Any:
        """Decode a value; one of an unregistered class comes back in its stored form."""
        if text is None:
            return None
        try:
            return decode(text, types=self.types)
        except DurableError:
            if is_sealed(text):  # encryption was turned on while this process ran
                raise
            return json.loads(text)


def run(
    row: sa.Row[Any], codec: Codec, questions: Sequence[Question] = (), usage: Usage | None = None
) -> Run:
    """Build a Run from a row of `runs`."""
    return Run(
        id=row.id,
        tenant=row.tenant,
        agent=row.agent,
        version=row.version,
        mode=row.mode,
        thread=row.thread,
        status=Status(row.status),
        priority=row.priority,
        input=codec.decode(row.input),
        output=codec.decode(row.output),
        error=json.loads(row.error) if row.error else None,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        epoch=row.epoch,
        worker=row.worker,
        lease_until=row.lease_until,
        run_after=row.run_after,
        deadline_seconds=row.deadline_seconds,
        idempotency_key=row.idempotency_key,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        wake_at=row.wake_at,
        questions=questions,
        usage=usage or Usage(saved_steps=row.saved_steps, saved_tokens=row.saved_tokens),
        redaction=codec.redaction,
        unwinding=Status(row.unwinding) if row.unwinding else None,
    )


def step(row: sa.Row[Any]) -> Step:
    """Build a Step from a row of `steps`; its value stays encoded."""
    return Step(
        key=row.key,
        kind=row.kind,
        fingerprint=row.fingerprint,
        name=row.name,
        state=StepState(row.state),
        value=row.value,
        place=row.place,
        request=row.request,
        error=row.error,
        attempts=row.attempts,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        approval_id=row.approval_id,
        seq=row.seq,
        epoch=row.epoch,
        seconds=row.seconds,
        recorded_at=row.recorded_at,
        compensation=row.compensation,
    )


def signal(row: sa.Row[Any], codec: Codec) -> Signal:
    """Build a Signal from a row of `signals`."""
    return Signal(
        id=row.id,
        run_id=row.run_id,
        event=row.event,
        payload=codec.decode(row.payload),
        sent_by=row.sent_by,
        sent_at=row.sent_at,
        taken_by=row.taken_by,
        number=row.number,
    )


def question(row: sa.Row[Any], codec: Codec) -> Question:
    """Build a Question from a row of `questions`."""
    decided = codec.decode(row.decision)
    return Question(
        id=row.id,
        key=row.key,
        kind=row.kind,
        payload=codec.decode(row.payload),
        digest=row.digest,
        tool=row.tool,
        allowed=tuple(json.loads(row.allowed)),
        role=row.role,
        schema=json.loads(row.schema) if row.schema else None,
        interrupt_id=row.interrupt_id,
        on_expiry=row.on_expiry,
        default=codec.decode(row.fallback),
        run_id=row.run_id,
        tenant=row.tenant,
        state=QuestionState(row.state),
        asked_at=row.asked_at,
        expires_at=row.expires_at,
        decision=Decision(**decided) if decided else None,
        decided_at=row.decided_at,
        approval_id=row.approval_id,
        approvals=row.approvals,
        remind_after_seconds=row.remind_seconds,
        escalate_to=row.escalate_to,
        person=row.person,
        refused_before=_refusal(row.refused_before),
        redaction=codec.redaction,
    )


def _refusal(text: str | None) -> Refusal | None:
    if text is None:
        return None
    told = json.loads(text)
    return Refusal(**{**told, "at": datetime.fromisoformat(told["at"])})


def refusal_text(refusal: Refusal) -> str:
    """Encode a refusal as it is stored with a later question."""
    return json.dumps({**asdict(refusal), "at": refusal.at.isoformat()})


def decision_text(decision: Decision, codec: Codec, where: str) -> str:
    """Encode a decision as it is stored."""
    said = {
        "choice": decision.choice,
        "by": decision.by,
        "reason": decision.reason,
        "arguments": dict(decision.arguments) if decision.arguments is not None else None,
        "value": decision.value,
    }
    if decision.rules:
        said |= {"rules": [dict(rule) for rule in decision.rules], "until": decision.until}
    return codec.encode(said, where)
