"""The one answer that a question gets, and what happens when two give it at once."""

from __future__ import annotations

import pytest
from desk import Desk, at_once, question

from langgraph_durable.errors import AlreadyDecided, Conflict, NotEncodable, NotFound, NotWaiting
from langgraph_durable.runs import (
    Asked,
    Decision,
    Done,
    Question,
    QuestionState,
    Status,
    StepState,
)
from langgraph_durable.store import Inbox


def parked(desk: Desk, *asked: Question, **more: object) -> str:
    lease = desk.started(**more).lease
    assert desk.store.settle(lease, Asked(asked)) is Status.WAITING_HUMAN
    return lease.run_id


@pytest.mark.promise("S-31")
def test_a_decision_is_kept_and_queues_the_run_again(desk: Desk):
    asked = question()
    run_id = parked(desk, asked)
    decided = desk.decide(asked.id, Decision.edit("mei", {"amount": 40}, "less"))
    assert decided.state is QuestionState.DECIDED
    assert decided.decision == Decision.edit("mei", {"amount": 40}, "less")
    assert decided.approval_id
    assert decided.payload == {"amount": 42}  # the original stays beside the edit
    assert desk.status(run_id) is Status.QUEUED
    claim = desk.take("w2")
    assert desk.store.load(claim.lease).questions == [decided]
    assert claim.asked == 1


@pytest.mark.promise("S-31")
def test_an_approval_has_an_id_on_its_step_and_a_refusal_has_none(desk: Desk):
    yes, no = question("yes"), question("no")
    run_id = parked(desk, yes, no)
    waiting = desk.store.list_steps(run_id)
    assert [(s.key, s.state, s.fingerprint) for s in waiting] == [
        ("yes", StepState.ASKING, "d1"),
        ("no", StepState.ASKING, "d1"),
    ]
    approval = desk.decide(yes.id).approval_id
    assert approval
    assert desk.decide(no.id, Decision.reject("mei", "no")).approval_id is None
    assert [s.approval_id for s in desk.store.list_steps(run_id)] == [approval, None]


@pytest.mark.promise("S-33")
def test_the_second_click_is_a_success_that_changes_nothing(desk: Desk):
    asked = question()
    parked(desk, asked)
    first = desk.decide(asked.id)
    before = desk.dump()
    assert desk.decide(asked.id) == first
    assert desk.decide(asked.id, Decision.approve("bo", "me too")) == first
    assert desk.dump() == before


@pytest.mark.promise("H-05")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Decision.approve("mei"), Decision.reject("bo")),
        (Decision.edit("mei", {"amount": 1}), Decision.edit("mei", {"amount": 2})),
        (Decision.edit("mei", {"ok": True}), Decision.edit("mei", {"ok": 1})),
        (Decision.respond("mei", True), Decision.respond("mei", 1)),
        (Decision.respond("mei", 0), Decision.respond("mei", False)),
        (Decision.respond("mei", None), Decision.respond("mei", "")),
    ],
)
def test_a_different_decision_is_a_conflict_and_the_first_stands(
    desk: Desk, first: Decision, second: Decision
):
    asked = question()
    parked(desk, asked)
    desk.decide(asked.id, first)
    before = desk.dump()
    with pytest.raises(AlreadyDecided) as told:
        desk.decide(asked.id, second)
    assert (told.value.decided, told.value.by) == (first.choice, "mei")
    assert desk.dump() == before


@pytest.mark.promise("H-06")
@pytest.mark.parametrize(
    "value",
    [False, 0, "", [], None, {}, {1: "x"}, {"0" * 32: "x"}, float("nan"), "a\0b", "\ud83d", (1, 2)],
    ids=repr,
)
def test_an_odd_answer_is_kept_as_it_is_and_the_same_again_is_the_same(desk: Desk, value: object):
    asked = question(kind="ask", allowed=("respond",))
    parked(desk, asked)
    try:
        decided = desk.decide(asked.id, Decision.respond("mei", value))
    except NotEncodable:  # refused with a reason while the question stays open
        assert desk.store.question(asked.id).state is QuestionState.OPEN
        return
    assert decided.decision is not None
    assert repr(decided.decision.value) == repr(value)
    assert desk.decide(asked.id, Decision.respond("mei", value)).decided_at == decided.decided_at


@pytest.mark.promise("H-06")
def test_a_decision_that_cannot_be_kept_leaves_the_question_open(desk: Desk):
    asked = question()
    run_id = parked(desk, asked)
    with pytest.raises(NotEncodable):
        desk.decide(asked.id, Decision.respond("mei", object()))
    assert desk.store.question(asked.id).state is QuestionState.OPEN
    assert desk.status(run_id) is Status.WAITING_HUMAN


@pytest.mark.promise("H-12")
def test_a_decision_after_the_expiry_is_refused_before_and_after_the_sweep(desk: Desk):
    asked = question(expires_in_seconds=5.0)
    run_id = parked(desk, asked)
    desk.clock.advance(5)
    for swept in (False, True):
        if swept:
            assert desk.store.sweep() == 1
        with pytest.raises(NotWaiting) as told:
            desk.decide(asked.id)
        assert told.value.state == "expired"
    assert desk.store.question(asked.id).state is QuestionState.EXPIRED
    assert desk.store.question(asked.id).decision is None
    assert desk.status(run_id) is Status.QUEUED
    assert desk.types(run_id)[-2:] == ["question_expired", "run_resumed"]
    assert desk.store.sweep() == 0


@pytest.mark.promise("H-12")
def test_no_expiry_is_no_expiry(desk: Desk):
    asked = question()
    run_id = parked(desk, asked)
    desk.clock.advance(30 * 86_400)
    assert desk.store.sweep() == 0
    desk.decide(asked.id)
    assert desk.status(run_id) is Status.QUEUED


@pytest.mark.promise("H-05")
def test_a_decision_after_the_run_ended_is_refused_and_nothing_changes(desk: Desk):
    asked = question()
    run_id = parked(desk, asked)
    desk.store.cancel(run_id, by="bo")
    before = desk.dump()
    with pytest.raises(NotWaiting) as told:
        desk.decide(asked.id)
    assert told.value.state == "closed"
    assert desk.dump() == before


@pytest.mark.promise("S-32")
@pytest.mark.promise("H-19")
def test_another_tenants_run_and_question_look_like_none_at_all(desk: Desk):
    asked = question()
    run_id = parked(desk, asked, thread="c1")
    before = desk.dump()
    calls = [
        lambda: desk.store.get(run_id, "other"),
        lambda: desk.store.question(asked.id, "other"),
        lambda: desk.decide(asked.id, tenant="other"),
        lambda: desk.store.cancel(run_id, by="x", tenant="other"),
        lambda: desk.store.retry(run_id, by="x", tenant="other"),
    ]
    for call in calls:
        with pytest.raises(NotFound) as foreign:
            call()
        assert str(foreign.value).replace(run_id, "?").replace(asked.id, "?") in (
            "run '?' not found",
            "question '?' not found",
        )
    assert desk.store.list_questions(Inbox(tenant="other")) == []
    assert desk.dump() == before


@pytest.mark.promise("S-38")
def test_questions_are_decided_one_by_one_and_the_last_one_wakes_the_run(desk: Desk):
    a, b, c = question("a"), question("b", expires_in_seconds=5.0), question("c")
    run_id = parked(desk, a, b, c)
    desk.decide(a.id)
    desk.clock.advance(6)
    desk.store.sweep()
    assert desk.status(run_id) is Status.WAITING_HUMAN
    assert [q.key for q in desk.run(run_id).questions] == ["c"]
    desk.decide(c.id)
    assert desk.status(run_id) is Status.QUEUED
    assert desk.types(run_id).count("run_resumed") == 1


@pytest.mark.promise("S-78")
def test_the_inbox_lists_oldest_first_and_pages(desk: Desk):
    keys = []
    for i in range(5):
        desk.clock.advance(1)
        asked = question(f"k{i}", role="boss" if i % 2 else None)
        parked(desk, asked)
        keys.append(asked.key)
    page = desk.store.list_questions(Inbox(tenant="t", limit=2))
    last = page[-1]
    assert last.asked_at is not None
    rest = desk.store.list_questions(Inbox(tenant="t", after=(last.asked_at, last.id)))
    assert [q.key for q in [*page, *rest]] == keys
    assert [q.key for q in desk.store.list_questions(Inbox(role="boss"))] == ["k1", "k3"]
    assert desk.store.list_questions(Inbox(state=QuestionState.DECIDED)) == []


@pytest.mark.promise("H-05")
def test_two_people_at_once_with_the_same_decision_both_succeed(live: Desk):
    for _ in range(25):
        asked = question()
        run_id = parked(live, asked)
        got = at_once(lambda: live.decide(asked.id), lambda: live.decide(asked.id))  # noqa: B023
        assert all(isinstance(one, Question) for one in got), got
        assert got[0].approval_id == got[1].approval_id
        assert live.types(run_id).count("question_decided") == 1
        live.store.settle(live.take().lease, Done("1"))


@pytest.mark.promise("H-05")
def test_approve_against_reject_at_once_and_the_loser_is_told(live: Desk):
    for _ in range(25):
        asked = question()
        run_id = parked(live, asked)
        got = at_once(
            lambda: live.decide(asked.id, Decision.approve("mei")),  # noqa: B023
            lambda: live.decide(asked.id, Decision.reject("bo")),  # noqa: B023
        )
        assert sorted(type(one).__name__ for one in got) == ["AlreadyDecided", "Question"], got
        assert live.types(run_id).count("question_decided") == 1
        live.store.settle(live.take().lease, Done("1"))


@pytest.mark.promise("S-38")
def test_two_questions_decided_at_the_same_instant_still_wake_the_run(live: Desk):
    for round_ in range(40):
        a, b = question("a"), question("b")
        run_id = parked(live, a, b)
        at_once(lambda: live.decide(a.id), lambda: live.decide(b.id))  # noqa: B023
        assert live.status(run_id) is Status.QUEUED, round_
        assert live.types(run_id).count("run_resumed") == 1
        live.store.settle(live.take().lease, Done("1"))


@pytest.mark.promise("H-12")
def test_a_decision_races_the_expiry_and_exactly_one_wins(live: Desk):
    """200 rounds on either database; the question falls due while both are under way."""
    won = {"decided": 0, "expired": 0}
    for _ in range(4):
        asked = [question(f"k{i}", expires_in_seconds=0.15) for i in range(50)]
        run_id = parked(live, *asked)
        refused: list[str] = []

        def people() -> None:
            for one in asked:  # noqa: B023
                try:
                    live.decide(one.id)
                except NotWaiting as told:
                    refused.append(told.question_id)  # noqa: B023

        def sweeper() -> None:
            for _ in range(200):
                live.store.sweep()
                if live.status(run_id) is Status.QUEUED:  # noqa: B023
                    return

        assert at_once(people, sweeper) == [None, None]
        live.store.sweep()
        states = {q.id: q for q in live.store.list_questions(Inbox(run_id=run_id, state=None))}
        for one in asked:
            kept = states[one.id]
            lost = one.id in refused
            assert kept.state is (QuestionState.EXPIRED if lost else QuestionState.DECIDED)
            assert (kept.decision is None) is lost
            won[kept.state.value] += 1
        told = live.types(run_id)
        assert (told.count("question_decided"), told.count("question_expired")) == (
            50 - len(refused),
            len(refused),
        )
        assert live.status(run_id) is Status.QUEUED
        live.store.settle(live.take().lease, Done("1"))
    assert sum(won.values()) == 200


@pytest.mark.promise("H-11")
def test_a_decision_races_a_cancel_and_the_run_ends_cancelled(live: Desk):
    for _ in range(15):
        asked = question()
        run_id = parked(live, asked)
        decided, cancelled = at_once(
            lambda: live.decide(asked.id),  # noqa: B023
            lambda: live.store.cancel(run_id, by="bo"),  # noqa: B023
        )
        assert cancelled is Status.CANCELLED
        assert isinstance(decided, (Question, Conflict))
        assert live.status(run_id) is Status.CANCELLED
        assert live.claim() is None
