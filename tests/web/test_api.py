"""The task API as its users meet it, on both databases."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from langgraph_durable import Rule
from langgraph_durable.policy import Policy
from langgraph_durable.web import router
from tests.web.conftest import Site


def problem(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert {"type", "title", "detail"} <= body.keys()
    assert "Traceback" not in answer.text
    return body


@pytest.mark.promise("S-32")
@pytest.mark.promise("S-39")
def test_a_refund_is_submitted_read_approved_and_paid_once(site: Site) -> None:
    agent, supervisor = site.as_("agent"), site.as_("supervisor")

    sent = agent.post("/v1/runs", json={"agent": "refund", "input": {"ticket": "broken"}})
    run_id = sent.json()["id"]
    assert sent.status_code == 201
    assert sent.json()["status"] == "queued"
    problem(supervisor.post(f"/v1/runs/{run_id}/approve"), 409)
    site.work()

    waiting = agent.get(f"/v1/runs/{run_id}").json()
    assert waiting["status"] == "waiting_human"
    (question,) = waiting["questions"]
    assert (question["tool"], question["payload"]) == (
        "local.create_refund",
        {"amount_cents": 1200},
    )
    assert question["role"] == "supervisor"
    problem(agent.post(f"/v1/runs/{run_id}/approve"), 403)
    problem(site.as_("supervisor", "t_b").post(f"/v1/runs/{run_id}/approve"), 404)
    problem(site.as_("agent", "t_b").post(f"/v1/runs/{run_id}/approve"), 404)
    assert site.ledger == []

    approved = supervisor.post(f"/v1/runs/{run_id}/approve")
    assert approved.status_code == 200, approved.text
    assert approved.json()["approved_steps"] == ["refund"]
    site.work()

    done = agent.get(f"/v1/runs/{run_id}").json()
    assert done["status"] == "succeeded"
    assert done["output"]["paid"] == [{"paid_cents": 1200}]
    assert [(s["seq"], s["kind"], s["key"], s["status"]) for s in done["steps"]] == [
        (1, "tool", "refund", "recorded")
    ]
    assert site.ledger == [(f"{run_id}:refund", 1200)]
    problem(supervisor.post(f"/v1/runs/{run_id}/approve"), 409)


@pytest.mark.promise("S-32")
def test_an_unknown_agent_is_a_bad_request(site: Site) -> None:
    body = problem(site.as_("agent").post("/v1/runs", json={"agent": "nobody"}), 400)
    assert "nobody" in body["detail"]


def test_without_a_live_key_nothing_is_answered(site: Site) -> None:
    secret = site.secret("agent")
    for client in (
        site.client(),
        site.client("lgd_nonsense"),
        site.client(secret[:-2] + "xx"),
    ):
        answer = client.get("/v1/runs")
        problem(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
    basic = TestClient(site.app, headers={"Authorization": "Basic YTpi"})
    problem(basic.get("/v1/runs"), 401)
    key = site.durable.keys.verify(secret)
    site.durable.keys.revoke(key.id)
    problem(site.client(secret).get("/v1/runs"), 401)


@pytest.mark.promise("S-33")
def test_the_second_click_changes_nothing_and_another_decision_is_a_conflict(site: Site) -> None:
    run_id = site.parked()
    question_id = site.question(run_id)
    address = f"/v1/questions/{question_id}/decision"
    supervisor = site.as_("supervisor")

    first = supervisor.post(address, json={"choice": "approve"})
    again = supervisor.post(address, json={"choice": "approve", "reason": "again"})
    other = problem(supervisor.post(address, json={"choice": "reject"}), 409)

    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    assert first.json()["decision"]["decided_by"] == "supervisor of t_a"
    assert (other["state"], other["decided"]) == ("decided", "approve")
    site.work()
    assert supervisor.post(address, json={"choice": "approve"}).json() == first.json()
    problem(supervisor.post(address, json={"choice": "reject"}), 409)
    assert len(site.ledger) == 1
    types = [event.type for event in site.durable.events(run_id)]
    assert types.count("question_decided") == 1


def test_a_refusal_says_why_and_the_run_goes_on(site: Site) -> None:
    run_id = site.parked()
    address = f"/v1/questions/{site.question(run_id)}/decision"

    supervisor = site.as_("supervisor")
    half = json.dumps({"choice": "reject", "reason": "half an emoji \ud83d"})
    problem(
        supervisor.post(address, content=half, headers={"Content-Type": "application/json"}), 422
    )
    answer = supervisor.post(address, json={"choice": "reject", "reason": "too much \0 🙂"})
    site.work()

    assert answer.json()["decision"]["reason"] == "too much \0 🙂"
    output = site.as_("agent").get(f"/v1/runs/{run_id}").json()["output"]
    assert "too much" in output["paid"][0]["refused"]
    assert site.ledger == []


def test_an_edited_amount_is_what_is_paid(site: Site) -> None:
    run_id = site.parked()
    address = f"/v1/questions/{site.question(run_id)}/decision"
    supervisor = site.as_("supervisor")

    for spoilt in ({"amount_cents": "much"}, {}, {"amount_cents": 1, "to": "me"}):
        problem(supervisor.post(address, json={"choice": "edit", "arguments": spoilt}), 422)
    answer = supervisor.post(address, json={"choice": "edit", "arguments": {"amount_cents": 700}})
    site.work()

    assert answer.status_code == 200, answer.text
    assert answer.json()["payload"] == {"amount_cents": 1200}
    assert answer.json()["decision"]["arguments"] == {"amount_cents": 700}
    assert site.ledger == [(f"{run_id}:refund", 700)]


@pytest.mark.promise("H-06")
@pytest.mark.parametrize("value", [False, 0, "", [], None, {}, {"1": "x"}, {"a" * 32: "x"}])
def test_an_odd_answer_arrives_as_it_was_sent(site: Site, value: object) -> None:
    run_id = site.parked("ask")
    address = f"/v1/questions/{site.question(run_id)}/decision"

    answer = site.as_("supervisor").post(address, json={"choice": "respond", "value": value})
    site.work()

    assert answer.status_code == 200, answer.text
    run = site.as_("agent").get(f"/v1/runs/{run_id}").json()
    assert run["status"] == "succeeded"
    assert run["output"]["answer"] == value
    assert type(run["output"]["answer"]) is type(value)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choice": "maybe"},
        {"choice": "approve", "value": 1},
        {"choice": "approve", "arguments": {}},
        {"choice": "respond"},
        {"choice": "respond", "value": 1},  # a tool's question takes no answer
        {"choice": "edit"},
        {"choice": "edit", "arguments": None},
        {"choice": "edit", "arguments": []},
        {"choice": "approve", "by": "the boss"},
        {"choice": "approve", "decided_by": "the boss"},
        {"choice": "approve", "tenant": "t_b"},
        {"choice": "approve", "reason": 1},
        {"choice": "reject", "reason": "x" * 2001},
        {"choice": "approve", "rules": [{"verdict": "allow", "name": "n" * 201}]},
        {"choice": "approve", "rules": [{"verdict": "allow", "name": "a\0b"}]},
        {"choice": "approve", "rules": [{"verdict": ["allow"]}]},
        {"choice": "approve", "rules": [{"verdict": "allow"}] * 11},
        {
            "choice": "approve",
            "rules": [{"verdict": "allow"}],
            "until": "9999-12-31T23:59:59-12:00",
        },
        [],
        "approve",
        None,
    ],
)
def test_a_malformed_decision_is_refused_and_the_question_stays_open(
    site: Site, body: object
) -> None:
    question_id = site.question(site.parked())

    problem(site.as_("supervisor").post(f"/v1/questions/{question_id}/decision", json=body), 422)

    shown = site.as_("agent").get(f"/v1/questions/{question_id}").json()
    assert (shown["state"], shown["decision"]) == ("open", None)


@pytest.mark.promise("H-06")
@pytest.mark.parametrize("number", ["1e400", "-1e999", "NaN", "Infinity", "9" * 5000])
def test_a_number_that_would_arrive_as_another_is_refused(site: Site, number: str) -> None:
    question_id = site.question(site.parked("ask"))
    body = f'{{"choice": "respond", "value": [{number}]}}'
    json_ = {"Content-Type": "application/json"}
    client, address = site.as_("supervisor"), f"/v1/questions/{question_id}"
    problem(client.post(f"{address}/decision", content=body, headers=json_), 422)
    assert client.get(address).json()["state"] == "open"


@pytest.mark.promise("S-38")
def test_questions_of_a_run_are_approved_together_or_one_by_one(site: Site) -> None:
    together = site.parked(amounts=[1, 2, 3])
    apart = site.parked(amounts=[4, 5])
    supervisor = site.as_("supervisor")

    answer = supervisor.post(f"/v1/runs/{together}/approve", json={"reason": "fine"}).json()
    assert sorted(answer["approved_steps"]) == ["refund", "refund:1", "refund:2"]
    first, second = [q.id for q in site.durable.questions(run_id=apart)]
    one = supervisor.post(f"/v1/runs/{apart}/approve", json={"questions": [first]}).json()
    assert one["run"]["status"] == "waiting_human"
    again = supervisor.post(f"/v1/runs/{apart}/approve", json={"questions": [first, second]})
    assert again.status_code == 200
    assert again.json()["run"]["status"] == "queued"
    site.work()

    assert sorted(amount for _, amount in site.ledger) == [1, 2, 3, 4, 5]


def test_approving_several_is_all_or_nothing(site: Site) -> None:
    run_id, other = site.parked(amounts=[1, 2]), site.parked()
    first, second = [q.id for q in site.durable.questions(run_id=run_id)]
    supervisor = site.as_("supervisor")
    approve = f"/v1/runs/{run_id}/approve"
    supervisor.post(f"/v1/questions/{second}/decision", json={"choice": "reject"})

    problem(supervisor.post(approve, json={"questions": [first, second]}), 409)
    problem(supervisor.post(approve, json={"questions": [first, site.question(other)]}), 404)
    problem(supervisor.post(approve, json={"questions": []}), 422)

    assert [q.id for q in site.durable.questions(run_id=run_id)] == [first]


def judged_by(site: Site, rule: Rule) -> None:
    site.durable.services = replace(site.durable.services, policy=Policy([rule]))


def test_a_question_for_another_role_is_not_for_a_supervisor(site: Site) -> None:
    judged_by(site, Rule("ask", tool="create_refund", approver_role="finance"))
    run_id = site.parked()
    address = f"/v1/questions/{site.question(run_id)}/decision"
    supervisor = site.as_("supervisor")

    said = problem(supervisor.post(address, json={"choice": "approve"}), 403)
    assert "finance" in said["detail"]
    problem(supervisor.post(f"/v1/runs/{run_id}/approve"), 403)
    assert site.as_("finance").post(address, json={"choice": "approve"}).status_code == 200


def test_a_rule_that_names_the_agents_role_lets_no_agent_decide(site: Site) -> None:
    judged_by(site, Rule("ask", tool="create_refund", approver_role="agent"))
    run_id = site.parked()

    problem(site.as_("agent").post(f"/v1/runs/{run_id}/approve"), 403)


@pytest.mark.promise("H-12")
def test_a_decision_after_the_expiry_is_told_so(site: Site) -> None:
    judged_by(site, Rule("ask", tool="create_refund", expires_in_seconds=0.4))
    run_id = site.parked()
    address = f"/v1/questions/{site.question(run_id)}/decision"
    supervisor = site.as_("supervisor")
    time.sleep(0.6)

    unswept = problem(supervisor.post(address, json={"choice": "approve"}), 409)
    site.durable.store.sweep()
    swept = problem(supervisor.post(address, json={"choice": "approve"}), 409)
    site.work()

    assert unswept["state"] == swept["state"] == "expired"
    assert site.ledger == []
    output = supervisor.get(f"/v1/runs/{run_id}").json()["output"]
    assert "nobody approved it in time" in output["paid"][0]["refused"]


def test_a_decision_that_comes_too_late_is_refused_not_dropped(site: Site) -> None:
    run_id = site.parked()
    question_id = site.question(run_id)
    operator = site.as_("operator")

    assert operator.post(f"/v1/runs/{run_id}/cancel").json()["status"] == "cancelled"

    late = problem(
        site.as_("supervisor").post(
            f"/v1/questions/{question_id}/decision", json={"choice": "approve"}
        ),
        409,
    )
    assert late["state"] == "closed"
    assert operator.post(f"/v1/runs/{run_id}/cancel").status_code == 200
    problem(operator.post(f"/v1/runs/{run_id}/retry"), 409)


def test_an_event_is_signalled_to_a_run_once(site: Site) -> None:
    run_id = site.parked()
    agent, path = site.as_("agent"), f"/v1/runs/{run_id}/signals"
    body = {"event": "paid", "payload": {"cents": 42}, "id": "evt_1"}

    first = agent.post(path, json=body)
    assert first.status_code == 200, first.text
    assert (first.json()["sent_by"], first.json()["taken_by"]) == ("agent of t_a", None)
    assert agent.post(path, json=body).json() == first.json()
    problem(agent.post(path, json={**body, "payload": None}), 409)
    problem(agent.post(path, json={**body, "id": "evt_2", "payload": "x" * 300_000}), 413)
    problem(agent.post(path, json={"event": ""}), 422)
    problem(site.as_("supervisor").post(path, json=body), 403)
    assert agent.get(path).json()["items"] == [first.json()]

    site.as_("operator").post(f"/v1/runs/{run_id}/cancel")
    problem(agent.post(path, json={"event": "shipped"}), 409)


def test_an_operator_retries_what_failed_and_an_agent_may_not(site: Site) -> None:
    run_id = site.as_("agent").post("/v1/runs", json={"agent": "fails"}).json()["id"]
    site.work()

    failed = site.as_("agent").get(f"/v1/runs/{run_id}").json()
    assert failed["status"] == "failed"
    assert failed["error"]["message"] == "it broke"
    problem(site.as_("agent").post(f"/v1/runs/{run_id}/retry"), 403)
    problem(site.as_("supervisor").post(f"/v1/runs/{run_id}/cancel"), 403)
    problem(site.as_("operator").post(f"/v1/runs/{run_id}/cancel"), 409)
    again = site.as_("operator").post(f"/v1/runs/{run_id}/retry")
    assert again.json()["status"] == "queued"
    assert [e.actor for e in site.durable.events(run_id) if e.type == "run_retried"] == [
        "operator of t_a"
    ]


def test_only_a_key_with_the_role_submits(site: Site) -> None:
    for role in ("supervisor", "operator", "finance"):
        problem(site.as_(role).post("/v1/runs", json={"agent": "echo"}), 403)


# --- submit ----------------------------------------------------------------------------


def test_a_repeated_submit_finds_the_first_run(site: Site) -> None:
    agent = site.as_("agent")
    headers = {"Idempotency-Key": "ticket-42"}
    body = {"agent": "echo", "input": {"a": 1}}

    first = agent.post("/v1/runs", json=body, headers=headers)
    again = agent.post("/v1/runs", json=body, headers=headers)
    problem(agent.post("/v1/runs", json={"agent": "echo", "input": 2}, headers=headers), 409)
    foreign = site.as_("agent", "t_b").post("/v1/runs", json=body, headers=headers)

    assert (first.status_code, again.status_code, foreign.status_code) == (201, 200, 201)
    assert first.json()["id"] == again.json()["id"] != foreign.json()["id"]
    assert len(site.durable.runs(tenant="t_a")) == 1


@pytest.mark.parametrize(
    "value",
    [None, 0, 1.5, "é 中文 🙂", [], {}, {"$": "tuple", "v": [1]}, 2**70, "a\0b", "\ud83d", [[[]]]],
)
def test_input_comes_back_as_it_was_sent(site: Site, value: object) -> None:
    sent = site.as_("agent").post(
        "/v1/runs", content=json.dumps({"agent": "echo", "input": value}),
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    assert sent.status_code == 201, sent.text
    site.work()

    run = site.as_("agent").get(f"/v1/runs/{sent.json()['id']}").json()
    expected = "�" if value == "\ud83d" else value
    assert run["input"] == run["output"] == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"agent": "echo", "input": NaN}',
        '{"agent": "echo", "input": -Infinity}',
        '{"agent": "echo"',
        "",
        "[]",
        '"echo"',
        '{"agent": "echo", "tenant": "t_b"}',
        '{"agent": "echo", "id": "mine"}',
        '{"agent": 7}',
        '{"agent": ""}',
        '{"agent": "' + "x" * 300 + '"}',
        '{"agent": "echo", "priority": "high"}',
        '{"agent": "echo", "priority": true}',
        '{"agent": "echo", "thread": "a\\u0000b"}',
        '{"agent": "echo", "thread": "\\ud800"}',
        '{"agent": "echo", "max_attempts": 0}',
        '{"agent": "echo", "input": ' + "[" * 50_000 + "]" * 50_000 + "}",
        '{"agent": "echo", "input": ' + "[" * 400 + "]" * 400 + "}",
        '{"agent": "echo", "input": ' + "1" * 5000 + "}",
        '{"type": "SOMETHING_ELSE", "agent": "echo"}',
    ],
)
def test_a_malformed_submit_writes_nothing(site: Site, text: str) -> None:
    answer = site.as_("agent").post(
        "/v1/runs", content=text, headers={"Content-Type": "application/json"}
    )

    problem(answer, 422)
    assert site.durable.runs() == []


def test_bytes_that_are_no_text_are_refused(site: Site) -> None:
    for headers in ({"Content-Type": "application/json"}, {"Content-Type": "text/plain"}, {}):
        answer = site.as_("agent").post("/v1/runs", content=b"\xff\xfe{", headers=headers)
        assert answer.status_code in (400, 422), answer.text
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_body_over_the_limit_is_refused_while_it_is_read(site: Site) -> None:
    sent = 0

    def endless() -> Any:  # no Content-Length: it is counted
        nonlocal sent
        yield b'{"agent": "echo", "input": "'
        for _ in range(3_000):
            sent += 1000
            yield b"x" * 1000
        yield b'"}'

    agent = site.as_("agent")
    json_type = {"Content-Type": "application/json"}
    problem(agent.post("/v1/runs", content=endless(), headers=json_type), 413)
    problem(agent.post("/v1/runs", json={"agent": "echo", "input": "x" * 2_000_000}), 413)
    problem(agent.post("/v1/runs", json={"agent": "echo", "input": "x" * 1_050_000}), 413)
    lying = agent.post(
        "/v1/runs", content=b"{}", headers={**json_type, "Content-Length": "9" * 5000}
    )
    problem(lying, 413)
    question_id = site.question(site.parked())
    decision = {"choice": "reject", "reason": "x" * 1_200_000}
    problem(
        site.as_("supervisor").post(f"/v1/questions/{question_id}/decision", json=decision), 413
    )
    assert len(site.durable.runs()) == 1


# --- lists -----------------------------------------------------------------------------


def test_runs_are_listed_in_pages_newest_first(site: Site) -> None:
    ids = [site.durable.submit("echo", i, tenant="t_a") for i in range(7)]
    site.durable.submit("echo", 0, tenant="t_b")
    agent = site.as_("agent")

    seen, cursor = [], None
    while True:
        page = agent.get("/v1/runs", params={"limit": 3, **({"cursor": cursor} if cursor else {})})
        assert page.status_code == 200, page.text
        seen += [run["id"] for run in page.json()["items"]]
        cursor = page.json()["next"]
        if cursor is None:
            break

    assert seen == ids[::-1]
    assert agent.get("/v1/runs", params={"status": "succeeded"}).json()["items"] == []
    assert len(agent.get("/v1/runs", params={"agent": "echo"}).json()["items"]) == 7
    problem(agent.get("/v1/runs", params={"cursor": "nowhere"}), 404)
    for wrong in ({"limit": 0}, {"limit": 1000}, {"status": "lost"}, {"tenant": "t_b"}):
        problem(agent.get("/v1/runs", params=wrong), 422)


def test_the_inbox_is_listed_in_pages_oldest_first(site: Site) -> None:
    run_ids = [site.parked() for _ in range(5)]
    site.parked(tenant="t_b")
    agent = site.as_("agent")

    first = agent.get("/v1/questions", params={"limit": 3}).json()
    rest = agent.get("/v1/questions", params={"limit": 3, "cursor": first["next"]}).json()

    assert [q["run_id"] for q in first["items"] + rest["items"]] == run_ids
    assert rest["next"] is None
    site.as_("supervisor").post(f"/v1/runs/{run_ids[0]}/approve")
    assert len(agent.get("/v1/questions").json()["items"]) == 4
    assert len(agent.get("/v1/questions", params={"state": "all"}).json()["items"]) == 5
    of_one = agent.get("/v1/questions", params={"run_id": run_ids[0], "state": "decided"}).json()
    assert of_one["items"][0]["decision"]["choice"] == "approve"


def test_a_key_in_scope_of_one_agent_knows_no_other(site: Site) -> None:
    run_id = site.parked()
    question_id = site.question(run_id)
    asking = site.parked("ask")
    made = site.durable.keys.create(
        tenant="t_a", roles=["agent", "supervisor", "operator"], scopes=["agent:ask"], name="narrow"
    )
    narrow = site.client(made.secret)

    assert [run["id"] for run in narrow.get("/v1/runs").json()["items"]] == [asking]
    assert [q["run_id"] for q in narrow.get("/v1/questions").json()["items"]] == [asking]
    for method, path in (
        ("GET", f"/v1/runs/{run_id}"),
        ("GET", f"/v1/runs/{run_id}/wait"),
        ("GET", f"/v1/runs/{run_id}/events"),
        ("POST", f"/v1/runs/{run_id}/cancel"),
        ("POST", f"/v1/runs/{run_id}/approve"),
        ("GET", f"/v1/questions/{question_id}"),
    ):
        problem(narrow.request(method, path), 404)
    decide = f"/v1/questions/{question_id}/decision"
    problem(narrow.post(decide, json={"choice": "approve"}), 404)
    problem(narrow.post("/v1/runs", json={"agent": "refund"}), 400)
    assert narrow.post("/v1/runs", json={"agent": "ask", "input": {}}).status_code == 201
    wide = {"name": "wide", "roles": ["agent"]}
    problem(narrow.post("/v1/keys", json=wide), 403)
    problem(narrow.post("/v1/keys", json={**wide, "scopes": ["agent:refund"]}), 403)
    assert narrow.post("/v1/keys", json={**wide, "scopes": ["agent:ask"]}).status_code == 201


# --- keys ------------------------------------------------------------------------------


def test_an_operator_manages_the_keys_of_its_tenant(site: Site) -> None:
    operator = site.as_("operator")
    body = {"name": "integration", "roles": ["agent"], "expires_in_seconds": 3600}

    made = operator.post("/v1/keys", json=body)
    assert made.status_code == 201, made.text
    key_id, secret = made.json()["id"], made.json()["secret"]
    assert site.client(secret).get("/v1/runs").status_code == 200
    problem(operator.post("/v1/keys", json=body), 409)
    listed = operator.get("/v1/keys").json()["items"]
    assert {key["name"] for key in listed} == {"operator of t_a", "integration"}
    assert secret[-43:] not in operator.get("/v1/keys").text
    rotated = operator.post(f"/v1/keys/{key_id}/rotate", json={"grace_seconds": 0})
    assert rotated.status_code == 201
    problem(site.client(secret).get("/v1/runs"), 401)
    new_id = rotated.json()["id"]
    assert operator.post(f"/v1/keys/{new_id}/revoke").json()["live"] is False
    problem(site.client(rotated.json()["secret"]).get("/v1/runs"), 401)
    problem(operator.post(f"/v1/keys/{new_id}/rotate"), 422)
    for role in ("agent", "supervisor"):
        problem(site.as_(role).get("/v1/keys"), 403)
        problem(site.as_(role).post("/v1/keys", json=body), 403)
        problem(site.as_(role).post(f"/v1/keys/{new_id}/revoke"), 403)
    problem(site.as_("operator", "t_b").post(f"/v1/keys/{new_id}/revoke"), 404)


# --- mounting --------------------------------------------------------------------------


@pytest.mark.promise("S-69")
def test_the_router_goes_into_an_application_of_someone_else_in_one_line(site: Site) -> None:
    theirs = FastAPI()
    theirs.include_router(router(site.durable), prefix="/agents")
    client = TestClient(theirs, headers={"Authorization": f"Bearer {site.secret('agent')}"})

    sent = client.post("/agents/v1/runs", json={"agent": "echo", "input": 1})
    assert sent.status_code == 201
    problem(client.post("/agents/v1/runs", json={"agent": 1}), 422)
    problem(client.get("/agents/v1/runs/none"), 404)
    problem(client.post("/agents/v1/runs", json={"agent": "echo", "input": "x" * 2_000_000}), 413)
    document = client.get("/openapi.json").json()
    assert "/agents/v1/runs/{run_id}/approve" in document["paths"]
    assert "Problem" in document["components"]["schemas"]


def test_an_error_of_ours_says_nothing_of_the_inside(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(site.durable.store, "list_runs", broken)
    agent = site.as_("agent")

    answer = agent.get("/v1/runs")
    problem(answer, 500)
    assert "hunter2" not in answer.text
    problem(agent.get("/v1/nowhere"), 404)
    problem(agent.put("/v1/runs"), 405)


# --- AgentScope ------------------------------------------------------------------------


@pytest.mark.promise("S-79")
def test_agentscopes_confirmation_is_taken_where_the_run_was_started(site: Site) -> None:
    supervisor = site.as_("supervisor")
    tutorial = site.parked()
    event = {
        "type": "USER_CONFIRM_RESULT",
        "reply_id": tutorial,
        "confirm_results": [{"confirmed": True, "tool_call_id": "refund"}],
    }
    problem(site.as_("agent").post("/v1/runs", json=event), 403)
    problem(site.as_("supervisor", "t_b").post("/v1/runs", json=event), 404)
    assert supervisor.post("/v1/runs", json=event).status_code == 200
    assert supervisor.post("/v1/runs", json=event).status_code == 200

    newer = site.parked(amounts=[10, 20, 30])
    call = {"type": "tool_call", "name": "create_refund", "state": "asking"}
    results = [
        {"confirmed": True, "tool_call": {**call, "id": "refund", "input": '{"amount_cents": 10}'}},
        {"confirmed": False, "tool_call": {**call, "id": "refund:1", "input": "{}"}, "rules": None},
        {"confirmed": True, "tool_call": {**call, "id": "refund:2", "input": {"amount_cents": 3}}},
    ]
    answer = supervisor.post(
        "/v1/runs",
        json={"type": "USER_CONFIRM_RESULT", "reply_id": newer, "confirm_results": results,
              "id": "e1", "created_at": "2026-05-01T00:00:00"},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    site.work()

    assert sorted(amount for _, amount in site.ledger) == [3, 10, 1200]


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([], 422),
        ([{"confirmed": True}], 422),
        ([{"confirmed": "yes", "tool_call_id": "refund"}], 422),
        ([{"confirmed": True, "tool_call_id": "refund", "rules": [{"allow": "all"}]}], 422),
        ([{"confirmed": True, "tool_call": {"id": "refund", "input": "no json"}}], 422),
        ([{"confirmed": True, "tool_call": {"id": "refund", "input": {"amount_cents": ""}}}], 422),
        ([{"confirmed": True, "tool_call_id": "elsewhere"}], 404),
        ([{"confirmed": True, "tool_call_id": "refund"}] * 2, 422),
    ],
)
def test_a_malformed_confirmation_is_refused(site: Site, results: Any, status: int) -> None:
    run_id = site.parked()
    event = {"type": "USER_CONFIRM_RESULT", "reply_id": run_id, "confirm_results": results}

    problem(site.as_("supervisor").post("/v1/runs", json=event), status)
    assert len(site.durable.questions(run_id=run_id)) == 1
