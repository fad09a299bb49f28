"""Policy: which calls go ahead, which are refused, which wait for a person."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_durable.errors import BadInput
from langgraph_durable.policy import Limit, Policy, Rule, ToolCall
from langgraph_durable.runs import Effect


def a_call(tool: str = "refund", **given: Any) -> ToolCall:
    known: dict[str, Any] = {
        "tenant": "t_acme",
        "agent": "support",
        "server": "billing",
        "tool": tool,
        "arguments": {"amount_cents": 4200},
        "effect": Effect.IDEMPOTENT,
    }
    return ToolCall(**{**known, **given})


def judged(call: ToolCall, *rules: Rule) -> str:
    return Policy(rules).judge(call).kind


@pytest.mark.promise("S-70")
def test_without_rules_the_tools_own_default_decides():
    assert judged(a_call()) == "allow"
    assert judged(a_call(asks=True)) == "ask"
    assert Policy().judge(a_call(asks=True)).rule is None


@pytest.mark.promise("S-70")
@pytest.mark.parametrize(
    "where",
    [
        {"tenant": "t_acme"},
        {"server": "billing"},
        {"tool": "refund"},
        {"tool": "billing.refund"},
        {"agent": "support"},
        {"role": "trial"},
        {"effect": "write"},
        {"effect": "idempotent"},
        {"when": Limit("amount_cents", more_than=4000)},
        {"when": {"argument": "amount_cents", "more_than": 4000}},
        {"when": lambda arguments: arguments["amount_cents"] > 4000},
    ],
)
def test_a_rule_speaks_only_about_what_it_names(where):
    rule = Rule("deny", **where)
    assert judged(a_call(role="trial"), rule) == "deny"
    other = a_call(
        "list",
        tenant="t_other",
        server="crm",
        agent="nightly",
        effect=Effect.READ,
        arguments={"amount_cents": 1},
    )
    assert judged(other, rule) == "allow"


def test_a_rule_for_reads_leaves_writes_alone():
    rule = Rule("deny", effect="read")
    assert judged(a_call(effect=Effect.READ), rule) == "deny"
    assert judged(a_call(effect=Effect.ONCE), rule) == "allow"


@pytest.mark.promise("S-35")
def test_a_decisions_rule_lets_small_refunds_of_one_tenant_through():
    ask = Rule("ask", server="billing", tool="refund", approver_role="supervisor")
    stored = Rule.from_data(
        {
            "verdict": "allow",
            "tenant": "t_acme",
            "tool": "refund",
            "when": {"argument": "amount_cents", "at_most": 5000},
            "name": "approved by mei",
        }
    )
    policy = Policy([ask]).plus([stored])
    assert policy.judge(a_call()).kind == "allow"
    assert policy.judge(a_call(arguments={"amount_cents": 5001})).kind == "ask"
    assert policy.judge(a_call(tenant="t_other")).approver_role == "supervisor"


def test_deny_beats_a_more_specific_allow():
    rules = [Rule("deny", tenant="t_acme"), Rule("allow", tenant="t_acme", tool="refund")]
    assert judged(a_call(), *rules) == "deny"
    assert judged(a_call(), *reversed(rules)) == "deny"


def test_a_rule_that_names_the_tool_beats_one_that_names_everything_else():
    rules = [
        Rule("ask", tool="refund"),
        Rule("allow", tenant="t_acme", agent="support", server="billing", effect="write"),
    ]
    assert judged(a_call(), *rules) == "ask"


def test_of_equals_the_stricter_wins():
    rules = [Rule("allow", tenant="t_acme"), Rule("ask", server="billing")]
    assert judged(a_call(), *rules) == "ask"
    assert judged(a_call(), *reversed(rules)) == "ask"


def test_an_ask_that_is_not_overridable_is_put_whatever_allows_the_call():
    firm = Rule("ask", effect="write", approver_role="head", overridable=False)
    loose = [
        Rule("allow", tenant="t_acme", server="billing", tool="refund"),
        Rule("ask", tenant="t_acme", server="billing", tool="refund", approver_role="anyone"),
    ]
    verdict = Policy([*loose, firm]).judge(a_call())
    assert (verdict.kind, verdict.approver_role) == ("ask", "head")
    assert judged(a_call(), *loose, firm, Rule("deny", tool="refund")) == "deny"


def test_the_verdict_carries_the_terms_of_the_question():
    rule = Rule("ask", tool="refund", expires_in_seconds=60, on_expiry="fail", name="big refunds")
    verdict = Policy([rule]).judge(a_call())
    assert (verdict.expires_in_seconds, verdict.on_expiry) == (60, "fail")
    assert "big refunds" in verdict.reason
    assert Policy().judge(a_call()).on_expiry == "reject"


@pytest.mark.parametrize("verdict", ["allow", "deny", "ask"])
def test_a_predicate_that_breaks_denies_the_call_and_names_its_rule(verdict):
    rule = Rule(verdict, tool="refund", when=lambda a: a["typo"] > 1, name="limit")
    said = Policy([Rule("allow"), rule]).judge(a_call())
    assert said.kind == "deny"
    assert "'limit'" in said.reason
    assert "KeyError" in said.reason


def test_a_predicate_that_gives_no_bool_is_not_trusted():
    said = Policy([Rule("allow", when=lambda a: a["amount_cents"])]).judge(a_call())  # type: ignore[arg-type, return-value]
    assert said.kind == "deny"
    assert "int, not a bool" in said.reason


def test_a_predicate_can_not_change_the_arguments():
    def meddle(arguments: Any) -> bool:
        arguments["amount_cents"] = 1
        return True

    assert judged(a_call(), Rule("allow", when=meddle)) == "deny"


@pytest.mark.parametrize(
    "arguments",
    [{}, *({"amount_cents": odd} for odd in ("4200", None, True, float("nan"), float("inf")))],
)
def test_an_amount_that_cant_be_compared_is_never_inside_a_limit(arguments):
    call = a_call(arguments=arguments, asks=True)
    small = Rule("allow", tool="refund", when=Limit("amount_cents", at_most=5000))
    big = Rule("deny", tool="refund", when=Limit("amount_cents", more_than=5000))
    assert judged(call, small) == "ask"
    assert judged(call, big) == "deny"


def test_several_limits_must_all_hold_and_may_look_inside():
    when = (Limit("order.cents", at_most=Decimal("50")), Limit("order.currency", one_of=("EUR",)))
    rule = Rule("deny", when=when)
    assert judged(a_call(arguments={"order": {"cents": 50, "currency": "EUR"}}), rule) == "deny"
    assert judged(a_call(arguments={"order": {"cents": 51, "currency": "EUR"}}), rule) == "allow"
    assert judged(a_call(arguments={"order": {"cents": 50, "currency": "USD"}}), rule) == "allow"


def test_one_is_not_true():
    rule = Rule("deny", when=Limit("force", one_of=(True,)))
    assert judged(a_call(arguments={"force": True}), rule) == "deny"
    assert judged(a_call(arguments={"force": 1}), rule) == "allow"


@pytest.mark.parametrize(
    "rule",
    [
        Rule("deny"),
        Rule("allow", tenant="t", tool="x", when=Limit("a", at_most=5)),
        Rule("ask", when=(Limit("a", more_than=1), Limit("b", one_of=("x", 2))), overridable=False),
        Rule("ask", approver_role="head", expires_in_seconds=5.5, on_expiry="fail", name="n"),
    ],
)
def test_a_rule_comes_back_from_data_as_it_was(rule):
    assert Rule.from_data(rule.to_data()) == rule


def test_a_rule_with_a_function_cant_be_stored():
    with pytest.raises(BadInput, match="use Limit"):
        Rule("deny", when=lambda a: True).to_data()


async def later(arguments: Any) -> bool:
    return True


@pytest.mark.parametrize(
    "given",
    [
        {"verdict": "maybe"},
        {"verdict": "deny", "tenant": ""},
        {"verdict": "deny", "tool": " refund"},
        {"verdict": "deny", "tool": None},
        {"verdict": "deny", "server": "a\nb"},
        {"verdict": "deny", "effect": "writes"},
        {"verdict": "deny", "name": 3},
        {"verdict": "deny", "when": later},
        {"verdict": "deny", "when": "amount < 5"},
        {"verdict": "deny", "when": ()},
        {"verdict": "allow", "approver_role": "head"},
        {"verdict": "deny", "expires_in_seconds": 5},
        {"verdict": "allow", "overridable": False},
        {"verdict": "ask", "overridable": "no"},
        {"verdict": "ask", "approver_role": ""},
        {"verdict": "ask", "expires_in_seconds": 0},
        {"verdict": "ask", "expires_in_seconds": float("nan")},
        {"verdict": "ask", "on_expiry": "allow"},
    ],
)
def test_a_rule_that_could_never_mean_anything_is_refused(given):
    with pytest.raises(BadInput):
        Rule(**given)


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        {"verdict": "allow", "tol": "refund"},
        {"verdict": "allow", "when": {"argument": "a"}},
        {"verdict": "allow", "when": {"argument": "a", "at_most": "5"}},
        {"verdict": "allow", "when": {"argument": "a", "at_most": True}},
        {"verdict": "allow", "when": {"argument": "a", "atmost": 5}},
        {"verdict": "allow", "when": {"at_most": 5}},
        {"verdict": "allow", "when": {"argument": "a", "one_of": "abc"}},
        {"verdict": "allow", "when": "os.system"},
        {"verdict": "allow", "when": len},
        {"verdict": "allow", "when": []},
    ],
)
def test_malformed_data_makes_no_rule(data):
    with pytest.raises(BadInput):
        Rule.from_data(data)


def test_a_policy_takes_only_rules():
    with pytest.raises(BadInput):
        Policy([{"verdict": "deny"}])  # type: ignore[list-item]


NAMES = {"tenant": ["*", "t_acme", "x"], "server": ["*", "billing", "x"], "tool": ["*", "refund"]}
RULES = st.builds(
    lambda verdict, where, firm: Rule(
        verdict, **where, overridable=not (firm and verdict == "ask")
    ),
    st.sampled_from(["allow", "deny", "ask"]),
    st.fixed_dictionaries({name: st.sampled_from(some) for name, some in NAMES.items()}),
    st.booleans(),
)


@given(st.lists(RULES, max_size=6), st.booleans())
def test_more_rules_never_lift_a_deny_or_a_firm_ask(rules, asks):
    call = a_call(asks=asks)
    matching = [rule for rule in rules if rule.matches(call)]
    kind = judged(call, *rules)
    if any(rule.verdict == "deny" for rule in matching):
        assert kind == "deny"
    elif any(not rule.overridable for rule in matching):
        assert kind == "ask"
    assert judged(call, *reversed(rules)) == kind
