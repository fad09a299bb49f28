"""Rules that decisions carried, and what time and people do to open questions."""

from __future__ import annotations

from datetime import timedelta

import pytest
from desk import Desk, at_once, question

from langgraph_durable.errors import NotFound, NotWaiting
from langgraph_durable.runs import Asked, Decision, Question, QuestionState

RULE = {"verdict": "allow", "tool": "pay"}


def parked(desk: Desk, *asked: Question, **more: object) -> str:
    lease = desk.started(**more).lease
    desk.store.settle(lease, Asked(asked))
    return lease.run_id


def decided(desk: Desk, *rules: dict[str, object], **more: object) -> Question:
    asked = question()
    parked(desk, asked, **more)
    until = more.get("until")
    return desk.decide(asked.id, Decision.approve("mei", rules=rules or [RULE], until=until))


@pytest.mark.promise("S-35")
def test_rules_are_kept_with_who_made_them_and_on_which_question(desk: Desk):
    asked = decided(desk, RULE, {"verdict": "deny", "tool": "wipe"})
    first, second = desk.store.list_rules("t")
    assert (first.data, second.data["verdict"]) == (RULE, "deny")
    assert {rule.made_by for rule in (first, second)} == {"mei"}
    assert {rule.question_id for rule in (first, second)} == {asked.id}
    assert desk.types(asked.run_id).count("rule_made") == 2
    assert asked.decision is not None
    assert list(asked.decision.rules) == [RULE, {"verdict": "deny", "tool": "wipe"}]


@pytest.mark.promise("S-35")
def test_the_second_click_makes_no_second_rule(desk: Desk):
    asked = question()
    parked(desk, asked)
    decision = Decision.approve("mei", rules=[RULE])
    at_once(*[lambda: desk.decide(asked.id, decision)] * 4)
    assert len(desk.store.list_rules()) == 1


@pytest.mark.promise("S-35")
def test_a_claim_knows_whether_there_is_a_rule_in_force_for_its_tenant(desk: Desk):
    asked = question()
    run_id = parked(desk, asked)
    until = desk.clock.now() + timedelta(hours=1)
    desk.decide(asked.id, Decision.approve("mei", rules=[RULE], until=until))
    claim = desk.take()
    assert (claim.run.id, claim.has_rules) == (run_id, True)
    loaded = desk.store.load(claim.lease, rules_of="t")
    assert [rule.data for rule in loaded.rules] == [RULE]
    desk.submit(tenant="other")
    assert not desk.take().has_rules
    desk.clock.advance(3601)
    desk.submit()
    assert not desk.take("w2", adopts=False).has_rules


@pytest.mark.promise("H-19")
def test_another_tenants_rule_is_not_found(desk: Desk):
    decided(desk)
    (rule,) = desk.store.list_rules("t")
    before = desk.dump()
    assert desk.store.list_rules("other") == []
    for rule_id in (rule.id, "nope", "a\0b", "\ud83d"):
        with pytest.raises(NotFound):
            desk.store.revoke_rule(rule_id, by="eve", tenant="other")
    assert desk.dump() == before


# --- by time ---------------------------------------------------------------------------


def test_many_sweeps_at_once_remind_and_escalate_once(desk: Desk):
    several = [
        question(
            f"pay{i}",
            role="clerk",
            remind_after_seconds=60,
            escalate_after_seconds=60,
            escalate_to="boss",
        )
        for i in range(5)
    ]
    run_id = parked(desk, *several)
    desk.clock.advance(61)
    assert sum(at_once(*[desk.store.sweep] * 4)) == 10
    assert desk.types(run_id).count("question_reminded") == 5
    assert desk.types(run_id).count("question_escalated") == 5
    assert {q.role for q in desk.run(run_id).questions} == {"boss"}


@pytest.mark.promise("H-12")
def test_an_expiry_comes_before_a_reminder(desk: Desk):
    asked = question(remind_after_seconds=5, expires_in_seconds=10)
    run_id = parked(desk, asked)
    desk.clock.advance(11)
    desk.store.sweep()
    assert desk.types(run_id).count("question_reminded") == 0
    assert desk.store.question(asked.id).state is QuestionState.EXPIRED


def test_a_decision_races_an_escalation_and_stands(desk: Desk):
    for round_ in range(10):
        asked = question(escalate_after_seconds=1, escalate_to="boss")
        run_id = parked(desk, asked)
        desk.clock.advance(2)
        done = at_once(lambda asked=asked: desk.decide(asked.id), desk.store.sweep)
        assert not [one for one in done if isinstance(one, Exception)], round_
        assert desk.store.question(asked.id).state is QuestionState.DECIDED
        desk.store.cancel(run_id, by="test")


# --- several people --------------------------------------------------------------------


def test_two_approvals_at_the_same_instant_decide_once(desk: Desk):
    for _ in range(10):
        asked = question(approvals=2)
        run_id = parked(desk, asked)
        at_once(
            lambda asked=asked: desk.decide(asked.id, Decision.approve("mei")),
            lambda asked=asked: desk.decide(asked.id, Decision.approve("bo")),
            lambda asked=asked: desk.decide(asked.id, Decision.approve("mei")),
        )
        found = desk.store.question(asked.id)
        assert (found.state, sorted(found.approved_by)) == (QuestionState.DECIDED, ["bo", "mei"])
        assert desk.types(run_id).count("question_decided") == 1
        assert desk.types(run_id).count("question_approved") == 2
        desk.store.cancel(run_id, by="test")


def test_an_approval_that_comes_too_late_is_refused(desk: Desk):
    asked = question(approvals=2, expires_in_seconds=5)
    parked(desk, asked)
    desk.decide(asked.id, Decision.approve("mei"))
    desk.clock.advance(6)
    with pytest.raises(NotWaiting):
        desk.decide(asked.id, Decision.approve("bo"))
    assert desk.store.question(asked.id).approved_by == ("mei",)


def test_only_the_rules_that_both_approved_are_made(desk: Desk):
    asked = question(approvals=2)
    parked(desk, asked)
    assert desk.decide(asked.id, Decision.approve("mei", rules=[RULE])).state is QuestionState.OPEN
    assert desk.decide(asked.id, Decision.approve("bo")).state is QuestionState.OPEN
    assert desk.decide(asked.id, Decision.approve("cy")).state is QuestionState.DECIDED
    assert desk.store.list_rules() == []
