"""What the templates show: a question's card, a run's timeline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from langgraph_durable.keys import may_answer, may_hand_over
from langgraph_durable.runs import Event, Question, QuestionState, StandingRule, Step
from langgraph_durable.web.auth import Caller
from langgraph_durable.web.page.session import Visitor
from langgraph_durable.web.plain import plain, text


@dataclass(frozen=True, slots=True)
class Card:
    """A question, and what this visitor may do about it."""

    question: Question
    role: str
    choices: tuple[str, ...]  # empty: not for this visitor, or no longer open
    fields: Sequence[tuple[str, str]] | None  # the payload, if it is an object: name, value
    payload: str
    may_hand_over: bool
    problem: str = ""
    draft: str = ""  # what was typed when the problem came

    @property
    def title(self) -> str:
        """What is asked about: the tool, or the place in the graph without its counters."""
        return self.question.tool or self.question.key.partition("@")[0] or self.question.key

    @property
    def amounts(self) -> Mapping[str, str]:
        """Amounts of money as people read them: 4900 cents are 49.00."""
        shown = self.question.shown
        if not isinstance(shown, Mapping):
            return {}
        return {
            name: f"{value // 100:,}.{value % 100:02d}"
            for name, value in shown.items()
            if isinstance(name, str)
            and name.endswith("_cents")
            and type(value) is int
            and value >= 0
        }

    @property
    def waits_for(self) -> str:
        """Who may decide: a person by name, or a role."""
        return self.question.person or self.role

    @property
    def is_open(self) -> bool:
        """Whether it still waits."""
        return self.question.state is QuestionState.OPEN


def card(question: Question, visitor: Visitor, problem: str = "", draft: str = "") -> Card:
    """Return a question as a card."""
    shown = plain(question.shown)
    caller = visitor.caller
    may = may_answer(question, caller.name, caller.key.roles)
    is_open = question.state is QuestionState.OPEN
    return Card(
        question=question,
        role=question.role or "supervisor",
        choices=question.allowed if may and is_open else (),
        may_hand_over=is_open and may_hand_over(question, caller.name, caller.key.roles),
        fields=[(name, pretty(value)) for name, value in shown.items()]
        if isinstance(shown, dict)
        else None,
        payload=pretty(shown),
        problem=problem,
        draft=draft or pretty(shown),
    )


def pretty(value: Any) -> str:
    """Return a value for people: text as it is, the rest as indented JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(plain(value), indent=2, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the timeline: an event, or a step."""

    at: datetime | None
    event: Event | None = None
    step: Step | None = None
    replayed: int = 0
    detail: str = ""
    undone: str = ""  # of a step: that it was compensated, or why not


def timeline(
    steps: Sequence[Step], events: Sequence[Event], undone: Mapping[str, str]
) -> list[Entry]:
    """Return what happened to a run, in order of time."""
    told = [_told(event) for event in events]
    made = [Entry(s.recorded_at, step=s, undone=text(undone.get(s.key, ""))) for s in steps]
    # steps before the event of the same instant: a pass records, then settles
    return sorted(
        [*made, *told], key=lambda e: (e.at is None, e.at or _NEVER, e.event is not None, _order(e))
    )


_NEVER = datetime.max.replace(tzinfo=UTC)


def _order(entry: Entry) -> int:
    return entry.event.id if entry.event else (entry.step.seq if entry.step else 0)


def _told(event: Event) -> Entry:
    data: Mapping[str, Any] = event.data
    replayed = data.get("replayed")
    return Entry(
        event.at,
        event=event,
        replayed=replayed if isinstance(replayed, int) else 0,
        detail=text(_detail(event.type, data)),
    )


@dataclass(frozen=True, slots=True)
class Ruling:
    """A rule that a decision carried, as a line of the list."""

    rule: StandingRule
    says: str  # allow, ask or deny
    tool: str
    conditions: Sequence[str]
    may_revoke: bool

    @property
    def state(self) -> str:
        """Whether it holds, and if not, what ended it."""
        if self.rule.is_live:
            return "in_force"
        return "revoked" if self.rule.revoked_at is not None else "ended"


def ruling(rule: StandingRule, caller: Caller) -> Ruling:
    """Return a rule as a line of the list."""
    data = dict(rule.data)
    says, tool = str(data.pop("verdict", "")), str(data.pop("tool", "*"))
    data.pop("tenant", None)
    when = data.pop("when", None) or ()
    limits = [line for limit in when for line in _limit(limit)]
    rest = [f"{name} = {pretty(value)}" for name, value in data.items()]
    return Ruling(rule, says, tool, [*limits, *rest], rule.is_live and caller.may_revoke(rule))


_SIGNS = {"at_most": "≤", "more_than": ">", "one_of": "∈"}


def _limit(limit: Mapping[str, Any]) -> list[str]:
    name = limit.get("argument")
    return [f"{name} {sign} {plain(limit[key])}" for key, sign in _SIGNS.items() if key in limit]


def _detail(type_: str, data: Mapping[str, Any]) -> str:
    if type_ == "question_decided":
        reason = data.get("reason")
        return f"{data.get('key')}: {data.get('choice')}" + (f" ({reason})" if reason else "")
    if type_ == "question_delegated":
        return f"{data.get('key')} → {data.get('person') or data.get('role')}"
    if type_ in ("rule_made", "rule_revoked"):
        return str(data.get("rule_id") or "")
    if type_ == "question_approved":
        return f"{data.get('key')}: {data.get('choice')}"
    if type_ == "question_asked":
        return str(data.get("tool") or data.get("key") or "")
    if type_ in ("step_compensated", "step_not_compensated"):
        reason = data.get("reason")
        return str(data.get("key")) + (f" ({reason})" if reason else "")
    error = data.get("error")
    if isinstance(error, Mapping):
        return f"{error.get('type')}: {error.get('message')}"
    return str(data["from"]) if data.get("from") else ""
