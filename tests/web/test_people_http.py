"""Handing questions over, several approvers, earlier refusals, rules and costs: API and page."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from langgraph_durable import Decision, Durable, RunContext, Worker
from langgraph_durable.runs import Price
from tests.web.conftest import Site
from tests.web.test_page import enter, token_in
from tests.web.web_shop import PEPPER

ALLOW = {
    "verdict": "allow",
    "tool": "create_refund",
    "when": [{"argument": "amount_cents", "at_most": 5000}],
}


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url  # the store's part of it is tested on both: tests/stories/test_people.py


def asks_twice(site: Site) -> str:
    """Return a question that two people must approve."""

    @site.durable.agent("pair")
    async def pair(ctx: RunContext, given: Any) -> Any:
        return await ctx.ask("sure", {"limit": 9}, choices=("approve", "reject"), approvals=2)

    return site.question(site.parked("pair"))


def test_a_question_is_handed_to_a_role_or_a_person_who_then_decide(site: Site) -> None:
    asked = f"/v1/questions/{site.question(site.parked())}"
    mei, bot = site.as_("supervisor"), site.as_("agent")
    assert bot.post(f"{asked}/delegate", json={"role": "finance"}).status_code == 403
    handed = mei.post(f"{asked}/delegate", json={"role": "finance"})
    assert (handed.status_code, handed.json()["role"]) == (200, "finance")
    assert mei.post(f"{asked}/delegate", json={"role": "boss"}).status_code == 403
    fin = site.as_("finance")
    to_bo = {"person": "boss of t_a"}
    assert fin.post(f"{asked}/delegate", json=to_bo).json()["person"] == "boss of t_a"
    approve = {"choice": "approve"}
    refused = fin.post(f"{asked}/decision", json=approve)
    assert (refused.status_code, "handed to boss of t_a" in refused.json()["detail"]) == (403, True)
    assert site.as_("boss").post(f"{asked}/decision", json=approve).status_code == 200
    again = site.as_("operator").post(f"{asked}/delegate", json={"role": "finance"})
    assert (again.status_code, again.json()["state"]) == (409, "decided")


@pytest.mark.parametrize(
    "body",
    [{}, {"role": "a", "person": "b"}, {"role": "agent"}, {"role": "No Role"}, {"role": ""},
     {"person": "a\u0000b"}, {"person": "é" * 201}, {"person": 7}, {"to": "finance"}, None, [1]],
)  # fmt: skip
def test_a_question_is_handed_to_nobody_who_could_not_be(site: Site, body: Any) -> None:
    asked = f"/v1/questions/{site.question(site.parked())}"
    answer = site.as_("supervisor").post(f"{asked}/delegate", json=body)
    assert (answer.status_code, answer.json()["status"]) == (422, 422)
    kept = site.as_("supervisor").get(asked).json()
    assert (kept["role"], kept["person"], kept["state"]) == ("supervisor", None, "open")


def test_one_who_has_no_key_is_no_dead_end(site: Site) -> None:
    asked = f"/v1/questions/{site.question(site.parked())}"
    site.as_("supervisor").post(f"{asked}/delegate", json={"role": "nobody-has-it"})
    assert site.as_("operator").post(f"{asked}/delegate", json={"role": "finance"}).is_success


@pytest.mark.promise("S-35")
def test_rules_are_listed_and_ended_over_http(site: Site) -> None:
    asked = site.question(site.parked())
    body = {"choice": "approve", "rules": [ALLOW], "until": "2999-01-01T00:00:00+02:00"}
    site.as_("supervisor").post(f"/v1/questions/{asked}/decision", json=body)
    bot = site.as_("agent")
    (rule,) = bot.get("/v1/rules").json()["items"]
    assert (rule["made_by"], rule["question_id"], rule["live"]) == (
        "supervisor of t_a",
        asked,
        True,
    )
    assert (rule["rule"]["when"], rule["expires_at"]) == (ALLOW["when"], "2998-12-31T22:00:00Z")
    address = f"/v1/rules/{rule['id']}"
    assert bot.post(f"{address}/revoke").status_code == 403
    for _ in range(2):
        ended = site.as_("operator").post(f"{address}/revoke").json()
        assert (ended["live"], ended["revoked_by"]) == (False, "operator of t_a")
    assert bot.get(address).json() == ended
    narrow = site.durable.keys.create(
        tenant="t_a", name="narrow", roles=["supervisor"], scopes=["agent:ask"]
    )
    client = site.client(narrow.secret)  # the rule came with a question of another agent
    assert client.get("/v1/rules").json()["items"] == []
    assert client.post(f"{address}/revoke").status_code == 404


def test_the_page_lists_rules_and_revokes_by_a_form_of_the_session_only(site: Site) -> None:
    asked = site.question(site.parked())
    site.durable.decide(asked, Decision.approve("mei <b>", rules=[ALLOW]))
    rule = site.durable.rules("t_a")[0]
    supervisor, other = enter(site), enter(site, "finance")
    shown = supervisor.get("/rules").text
    assert "amount_cents ≤ 5000" in shown
    assert "mei &lt;b&gt;" in shown
    address = f"/rules/{rule.id}/revoke"
    assert address not in other.get("/rules").text
    assert (
        other.post(address, data={"token": token_in(other.get("/rules").text)}).status_code == 403
    )
    for token in ("", "é", token_in(other.get("/").text)):
        assert supervisor.post(address, data={"token": token}).status_code == 403
    assert site.durable.rules("t_a")[0].is_live
    mine = {"token": token_in(shown)}
    assert supervisor.post(address, data=mine).headers["location"] == "/rules"
    assert not site.durable.rules("t_a")[0].is_live
    assert address not in supervisor.get("/rules").text
    foreign = enter(site, "operator", "t_b")
    token = {"token": token_in(foreign.get("/rules").text)}
    assert foreign.post(address, data=token).status_code == 404


def test_the_page_hands_a_question_over(site: Site) -> None:
    asked = site.question(site.parked())
    client = enter(site)
    address = f"/questions/{asked}/delegate"
    mine = {"token": token_in(client.get("/").text), "kind": "role"}
    assert client.post(address, data={"kind": "role", "to": "finance"}).status_code == 403
    bad = client.post(address, data={**mine, "to": "Not A Role"})
    assert (bad.status_code, "decides nothing" in bad.text) == (422, True)
    assert client.post(address, data={**mine, "to": "finance"}).status_code == 303
    shown = client.get("/").text
    assert "To be decided by <b>finance</b>" in shown
    assert address not in shown
    fin = enter(site, "finance")
    theirs = {"token": token_in(fin.get("/").text), "kind": "person", "to": "bo"}
    part = fin.post(address, data=theirs, headers={"X-Part": "1"})
    assert "To be decided by <b>bo</b>" in part.text
    assert 'value="approve"' not in part.text  # they may hand it on, and not decide
    assert address in part.text


def test_who_approved_so_far_and_that_it_was_refused_before_is_shown(site: Site) -> None:
    twice = asks_twice(site)
    decision = {"choice": "approve"}
    first = site.as_("supervisor").post(f"/v1/questions/{twice}/decision", json=decision).json()
    assert (first["state"], first["approvals"]) == ("open", 2)
    assert first["approved_by"] == ["supervisor of t_a"]
    assert "1 / 2 approvals: supervisor of t_a" in enter(site).get(f"/questions/{twice}").text

    for _ in range(2):
        site.durable.decide(site.question(site.parked()), Decision.reject("mei", "too much"))
        site.work()
    asked = site.question(site.parked())
    refusal = site.as_("agent").get(f"/v1/questions/{asked}").json()["refused_before"]
    assert (refusal["by"], refusal["reason"], refusal["times"]) == ("mei", "too much", 2)
    shown = " ".join(enter(site).get(f"/questions/{asked}").text.split())
    assert "refused before by <b>mei</b>" in shown
    assert "(2 times): too much" in shown


def test_money_is_exact_and_what_has_no_price_is_tokens(sqlite_url: str) -> None:
    def model(messages: Any, route: str) -> AIMessage:
        used = {"input_tokens": 1234, "output_tokens": 10, "total_tokens": 1244}
        return AIMessage("hi", usage_metadata=used)

    prices = {"fast": Price(input=0.15, output="0.6", currency="EUR")}
    models = {"fast": model, "smart": model}
    durable = Durable(sqlite_url, models=models, prices=prices, pepper=PEPPER)

    @durable.agent("talk")
    async def talk(ctx: RunContext, routes: list[str]) -> None:
        for route in routes:
            await ctx.llm(route, "hello", route=route)

    paid, unknown = (
        durable.submit("talk", r, tenant="t_a") for r in (["fast", "smart"], ["smart"])
    )
    Worker(durable).run_until_idle()
    site = Site(durable, [])
    usage = site.as_("agent").get(f"/v1/runs/{paid}").json()["usage"]
    cost = {"amount": "0.0001911", "currency": "EUR", "unpriced_tokens": 1244}
    assert (usage["cost"], usage["input_tokens"]) == (cost, 2468)
    assert site.as_("agent").get(f"/v1/runs/{unknown}").json()["usage"]["cost"] is None
    client = enter(site)
    shown = client.get(f"/runs/{paid}").text
    assert "0.0001911 EUR" in shown
    assert "1,244 tokens of unknown price" in shown
    assert "0.0001911 EUR" in client.get("/runs").text
    assert "EUR" not in client.get(f"/runs/{unknown}").text
    for one in site.clients:
        one.close()
    durable.close()


def test_a_rotated_key_ends_its_sessions_and_its_calls(site: Site) -> None:
    client, api = enter(site), site.as_("supervisor")
    key = site.durable.keys.verify(site.secret("supervisor"))
    site.durable.keys.rotate(key.id, grace_seconds=0)
    refused = api.get("/v1/runs")
    assert (refused.status_code, refused.headers["content-type"]) == (
        401,
        "application/problem+json",
    )
    assert client.get("/").headers["location"] == "/login"
    assert client.post("/logout", data={"token": "x"}).headers["location"] == "/login"
    assert json.loads(refused.text)["title"] == "No live API key"
