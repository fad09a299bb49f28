"""Rules: what each says about which calls, as code or as data."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal

from langgraph_durable.errors import BadInput
from langgraph_durable.policy.asking import check_asking, check_word
from langgraph_durable.runs import Effect, check_name

VerdictKind = Literal["allow", "deny", "ask"]
Predicate = Callable[[Mapping[str, Any]], bool]

_STRICTNESS: Mapping[str, int] = {"allow": 0, "ask": 1, "deny": 2}
_EFFECTS = frozenset({"*", "write", *Effect})
_CONDITIONS = ("tenant", "server", "role", "agent", "effect")  # beside the tool's name
_ASK_ONLY = (
    "approver_role",
    "expires_in_seconds",
    "remind_after_seconds",
    "escalate_after_seconds",
    "escalate_to",
)
_SECONDS = ("expires_in_seconds", "remind_after_seconds", "escalate_after_seconds")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What is known of a call when policy is asked about it.

    `asks` is the tool's own default; `role` is the role under which the run was submitted.
    """

    tenant: str
    agent: str
    server: str
    tool: str
    arguments: Mapping[str, Any]
    effect: Effect
    asks: bool = False
    role: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """A condition on one argument, as data, so that a rule made by a decision can be stored.

    `argument` may be a path ("order.amount_cents"). All bounds that are given must hold.
    """

    argument: str
    at_most: float | Decimal | None = None
    more_than: float | Decimal | None = None
    one_of: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse a limit that bounds nothing, or whose bound is not a number."""
        check_word("a limit's argument", self.argument)
        if self.one_of is not None:
            if not isinstance(self.one_of, list | tuple):
                raise BadInput(f"limit on {self.argument!r}: one_of is a list of values")
            object.__setattr__(self, "one_of", tuple(self.one_of))
        bounds = [bound for bound in (self.at_most, self.more_than) if bound is not None]
        if not bounds and self.one_of is None:
            raise BadInput(f"limit on {self.argument!r}: give at_most, more_than or one_of")
        if any(_number(bound) is None for bound in bounds):
            raise BadInput(f"limit on {self.argument!r}: a bound must be a finite number")

    def holds(self, arguments: Mapping[str, Any]) -> bool | None:
        """Return whether the limit holds, or None when the argument can't be compared.

        An argument that is absent, or text where a number is due, is neither inside nor
        outside: the rule that owns the limit takes the safe side.
        """
        value: Any = arguments
        for part in self.argument.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return None
            value = value[part]
        if self.one_of is not None and not any(_same(value, one) for one in self.one_of):
            return False
        if self.at_most is None and self.more_than is None:
            return True
        number = _number(value)
        if number is None:
            return None
        return (self.at_most is None or number <= self.at_most) and (
            self.more_than is None or number > self.more_than
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """Allow, deny or ask: for whom, for which tool and when. `"*"` is anything.

    `tool` is a bare name or "server.tool". `effect` may also be "write" (idempotent or
    once). `when` sees the arguments: a function, or one or several limits that must all hold,
    as `Limit` or as data: {"argument": "amount_cents", "at_most": 5000}.
    An `ask` says who may approve (`approver_role`), for how long the question stays open
    and what then happens; how many different people must approve (`approvals`); after which
    time without an answer somebody is reminded, each time anew, and after which another role
    may decide. `overridable=False` keeps an `ask` from being skipped by any other rule.
    """

    verdict: VerdictKind
    tenant: str = "*"
    server: str = "*"
    tool: str = "*"
    role: str = "*"
    agent: str = "*"
    effect: str = "*"
    when: Predicate | Limit | Mapping[str, Any] | Sequence[Limit | Mapping[str, Any]] | None = None
    approver_role: str | None = None
    expires_in_seconds: float | None = None
    on_expiry: Literal["reject", "fail"] = "reject"
    overridable: bool = True
    name: str = ""
    approvals: int = 1
    remind_after_seconds: float | None = None
    escalate_after_seconds: float | None = None
    escalate_to: str | None = None

    def __post_init__(self) -> None:
        """Refuse a rule that could never mean anything."""
        if self.verdict not in _STRICTNESS:
            raise BadInput(f"a rule's verdict is allow, deny or ask, not {self.verdict!r}")
        for part in ("tenant", "server", "tool", "role", "agent"):
            check_word(f"a rule's {part}", getattr(self, part))
        if self.name != "":
            check_name("a rule's name", self.name)
        if self.effect not in _EFFECTS:
            raise BadInput(f"a rule's effect is one of {sorted(_EFFECTS)}, not {self.effect!r}")
        self._check_when()
        self._check_question()

    def _check_when(self) -> None:
        if isinstance(self.when, Limit | Mapping | list | tuple):
            given = [self.when] if isinstance(self.when, Limit | Mapping) else list(self.when)
            if not given:
                raise BadInput(f"rule {self.label}: `when` has no limit; leave it out")
            object.__setattr__(self, "when", tuple(map(_limit, given)))
        elif self.when is not None and (
            not callable(self.when) or inspect.iscoroutinefunction(self.when)
        ):
            # A coroutine is true before it has been awaited: such a rule would always match.
            raise BadInput(f"rule {self.label}: `when` is a plain function, not async, or limits")

    def _check_question(self) -> None:
        if self.on_expiry not in ("reject", "fail"):
            raise BadInput(f"rule {self.label}: on_expiry is reject or fail")
        if not isinstance(self.overridable, bool):
            raise BadInput(f"rule {self.label}: overridable is true or false")
        if self.verdict != "ask":
            given = [part for part in _ASK_ONLY if getattr(self, part) is not None]
            given += [] if self.overridable else ["overridable"]
            given += [] if self.approvals == 1 else ["approvals"]
            if given:
                raise BadInput(f"rule {self.label}: only an ask rule takes {', '.join(given)}")
        for part in ("approver_role", "escalate_to"):
            if getattr(self, part) is not None:
                check_word(f"a rule's {part}", getattr(self, part))
        check_asking(
            f"rule {self.label}",
            approvals=self.approvals,
            escalate_to=self.escalate_to,
            **{part: getattr(self, part) for part in _SECONDS},
        )

    @property
    def label(self) -> str:
        """What messages and the audit call the rule: its name, or else its conditions."""
        if self.name:
            return repr(self.name)
        given = [
            f"{c}={getattr(self, c)}" for c in ("tool", *_CONDITIONS) if getattr(self, c) != "*"
        ]
        given += ["when …"] if self.when is not None else []
        return f"'{self.verdict} {', '.join(given) or 'everything'}'"

    @property
    def specificity(self) -> tuple[bool, int, int]:
        """How a rule compares with others that match: the greatest wins."""
        conditions = sum(getattr(self, c) != "*" for c in _CONDITIONS) + (self.when is not None)
        return (self.tool != "*", conditions, _STRICTNESS[self.verdict])

    def matches(self, call: ToolCall) -> bool:
        """Return whether the rule speaks about this call; whatever `when` raises comes out."""
        names = (
            self.tenant in ("*", call.tenant)
            and self.server in ("*", call.server)
            and self.tool in ("*", call.tool, f"{call.server}.{call.tool}")
            and self.role in ("*", call.role)
            and self.agent in ("*", call.agent)
            and self.effect in ("*", call.effect, "write" if call.effect.is_write else "read")
        )
        return names and self._holds(call.arguments)

    def _holds(self, arguments: Mapping[str, Any]) -> bool:
        if self.when is None:
            return True
        if isinstance(self.when, tuple):
            answers = [limit.holds(arguments) for limit in self.when]
            # What can't be compared never lets a call through, and never past an ask or deny.
            return False not in answers and (None not in answers or self.verdict != "allow")
        assert callable(self.when)  # noqa: S101  # limits became a tuple at construction
        answer = self.when(MappingProxyType(dict(arguments)))
        if not isinstance(answer, bool):
            raise TypeError(f"it returned {type(answer).__name__}, not a bool")
        return answer

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Rule:
        """Build a rule from plain data: the fields by name, `when` as one limit or several.

        Raises:
            BadInput: an unknown field, or a value that a rule refuses.
        """
        rule: Rule = _from(cls, data, "rule")
        if callable(rule.when):
            raise BadInput("a rule from data has limits for its `when`, not a function")
        return rule

    def to_data(self) -> dict[str, Any]:
        """Return the rule as plain data, for `from_data`.

        Raises:
            BadInput: `when` is a function, which can't be stored.
        """
        data = {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}
        if self.when is None:
            return data
        if not isinstance(self.when, tuple):
            raise BadInput(f"rule {self.label}: a `when` function can't be stored; use Limit")
        data["when"] = [
            {f.name: v for f in fields(limit) if (v := getattr(limit, f.name)) is not None}
            for limit in self.when
        ]
        return data


def _number(value: object) -> int | float | Decimal | None:
    """Return a finite number, or None. True is not one: it would count as 1."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    return value if math.isfinite(value) else None


def _same(value: object, one: object) -> bool:
    return value == one and isinstance(value, bool) == isinstance(one, bool)


def _limit(limit: object) -> Limit:
    if isinstance(limit, Limit):
        return limit
    made: Limit = _from(Limit, limit, "limit")
    return made


def _only(cls: type, data: object, what: str) -> dict[str, Any]:
    known = [f.name for f in fields(cls)]
    if not isinstance(data, Mapping):
        raise BadInput(f"a {what} is an object, not {type(data).__name__}")
    if unknown := sorted(str(name) for name in data if name not in known):
        raise BadInput(f"a {what} has no {', '.join(unknown)}; it has {', '.join(known)}")
    return dict(data)


def _from(cls: type[Any], data: object, what: str) -> Any:
    given = _only(cls, data, what)
    try:
        return cls(**given)
    except TypeError as missing:
        raise BadInput(f"a {what} from data: {missing}") from missing
