"""May this call go ahead: allow, deny or ask. Pure: rules and a call go in, a verdict comes out.

How rules meet:

1. A matching `deny` beats everything.
2. A matching `ask` that is not overridable is put to a person, whatever allows the call.
3. Otherwise the most specific rule wins: one that names the tool before one that doesn't,
   then the one with more conditions, and among equals the stricter.
4. No rule: `ask` if the tool itself asks, else `allow`.

A standing rule, one that a decision carried, joins them for its tenant. One that allows is
heard only where its maker could have answered: the other rules ask, the same role as then may
approve, and no more people must. And never for a request that a person refused before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from langgraph_durable.errors import BadInput
from langgraph_durable.policy.asking import check_asking
from langgraph_durable.policy.rules import Limit, Predicate, Rule, ToolCall, VerdictKind

__all__ = [
    "Limit",
    "Policy",
    "Predicate",
    "Rule",
    "Standing",
    "ToolCall",
    "Verdict",
    "VerdictKind",
    "check_asking",
]


@dataclass(frozen=True, slots=True)
class Standing:
    """A rule that a decision carried, as policy hears it."""

    id: str
    rule: Rule
    role: str | None = None  # who could decide the question that it came with
    approvals: int = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What policy says about one call, and the rule that said so (None: the tool's default).

    `reason` names the rule, and says if it broke; `standing` is the id of a rule that a
    decision carried.
    """

    kind: VerdictKind
    rule: Rule | None = None
    reason: str = ""
    standing: str | None = None

    @property
    def approvals(self) -> int:
        """How many different people must approve."""
        return self.rule.approvals if self.rule else 1

    @property
    def approver_role(self) -> str | None:
        """The role that may approve, or None for anyone who may decide."""
        return self.rule.approver_role if self.rule else None

    @property
    def expires_in_seconds(self) -> float | None:
        """How long the question stays open, or None for ever."""
        return self.rule.expires_in_seconds if self.rule else None

    @property
    def on_expiry(self) -> Literal["reject", "fail"]:
        """What happens to a call whose question nobody answered in time."""
        return self.rule.on_expiry if self.rule else "reject"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules in force. Judging is pure: the same rules and call give the same verdict."""

    rules: tuple[Rule, ...]

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        object.__setattr__(self, "rules", tuple(rules))
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise BadInput(f"a policy is made of Rule objects, not {type(rule).__name__}")

    def plus(self, rules: Iterable[Rule]) -> Policy:
        """Return this policy with more rules: those that decisions carried."""
        return Policy((*self.rules, *rules))

    def judge_with(
        self, call: ToolCall, standing: Sequence[Standing], *, refused_before: bool = False
    ) -> Verdict:
        """Return what may happen to the call where decisions have made rules."""
        first = self.judge(call)
        heard = [s for s in standing if _is_heard(s, first, refused_before=refused_before)]
        if not heard:
            return first
        verdict = self.plus(s.rule for s in heard).judge(call)
        ids = [s.id for s in heard if s.rule is verdict.rule]
        return replace(verdict, standing=ids[0]) if ids else verdict

    def judge(self, call: ToolCall) -> Verdict:
        """Return what may happen to the call. A rule that breaks denies it, and says which."""
        matching: list[Rule] = []
        for rule in self.rules:
            try:
                if rule.matches(call):
                    matching.append(rule)
            except Exception as broken:
                said = f"its `when` failed: {type(broken).__name__}: {broken}"
                return Verdict("deny", rule, f"{rule.label}: {said}")
        if not matching:
            kind: VerdictKind = "ask" if call.asks else "allow"
            return Verdict(kind, None, "the tool's own default")
        denies = [rule for rule in matching if rule.verdict == "deny"]
        firm = [rule for rule in matching if not rule.overridable]
        # max keeps the first of equals, so that the order of the list is the last word
        chosen = max(denies or firm or matching, key=lambda rule: rule.specificity)
        return Verdict(chosen.verdict, chosen, chosen.label)


def _is_heard(standing: Standing, first: Verdict, *, refused_before: bool) -> bool:
    if standing.rule.verdict != "allow":
        return True
    may_answer = standing.role == first.approver_role and standing.approvals >= first.approvals
    return first.kind == "ask" and may_answer and not refused_before
