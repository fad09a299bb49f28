"""H-19: knowing an id is not enough. Every route, with another tenant's ids wherever they fit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import sqlalchemy as sa

from langgraph_durable import Decision
from langgraph_durable.store import schema
from tests.web.conftest import Site

BODIES: dict[str, Any] = {
    "approve": {},
    "signals": {"event": "paid"},
    "decision": {"choice": "approve"},
    "rotate": {"grace_seconds": 0},
    "delegate": {"role": "boss"},
}


def rows_of(site: Site, tenant: str) -> list[Any]:
    """Return everything that is stored for a tenant."""
    found: list[Any] = []
    with site.durable.store.engine.connect() as connection:
        for table in (schema.runs, schema.questions, schema.events, schema.api_keys, schema.rules):
            query = sa.select(table).where(table.c.tenant == tenant).order_by(table.c.id)
            found += connection.execute(query).all()
        found += connection.execute(sa.select(schema.steps).order_by(schema.steps.c.run_id)).all()
    return found


class Theirs:
    """A parked run of tenant t_a, and all the ids that could be known of it."""

    def __init__(self, site: Site) -> None:
        site.secret("agent", "t_a")
        made = site.durable.submit_or_find(
            "refund", {"ticket": "SECRET"}, tenant="t_a", thread="thread-a", idempotency_key="key-a"
        )
        self.run = made[0].id
        site.work()
        self.question = site.question(self.run)
        self.key = site.durable.keys.list("t_a")[0].id
        allow = {"verdict": "allow", "tool": "create_refund"}
        asked = site.question(site.parked())
        site.durable.decide(asked, Decision.approve("mei", rules=[allow]))
        self.rule = site.durable.rules("t_a")[0].id
        self.event = str(site.durable.events(self.run)[1].id)
        self.ids = (self.run, self.question, self.key, self.rule, "thread-a", "key-a")


def hides(theirs: Theirs, text: str, *, echoed: str = "") -> bool:
    """Tell whether an answer shows nothing of the other tenant but what was sent to it."""
    known = [*theirs.ids, "SECRET", "create_refund", "t_a"]
    return not any(one in text for one in known if one != echoed and one not in echoed)


def paths(site: Site) -> list[tuple[str, str]]:
    """Return every route of the API that takes an id."""
    document = site.app.openapi()
    return [
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
        if "{" in path
    ]


@pytest.mark.promise("H-19")
@pytest.mark.parametrize("role", ["agent", "supervisor", "operator"])
def test_foreign_ids_in_a_path_are_not_found_on_any_route(site: Site, role: str) -> None:
    theirs = Theirs(site)
    client = site.as_(role, "t_b")
    before = rows_of(site, "t_a")
    tried = paths(site)
    assert len(tried) >= 10

    for method, path in tried:
        for id_ in theirs.ids[:4]:
            address = re.sub(r"\{\w+\}", id_, path)
            body = BODIES.get(path.rsplit("/", 1)[-1])
            answer = client.request(method, address, json=body)
            nothing = client.request(method, re.sub(r"\{\w+\}", "no-such-id", path), json=body)
            assert answer.status_code == 404, (method, address, answer.text)
            assert hides(theirs, answer.text, echoed=id_), answer.text
            # a foreign id and one that never was can't be told apart
            assert answer.text.replace(id_, "?") == nothing.text.replace("no-such-id", "?")

    assert rows_of(site, "t_a") == before


@pytest.mark.promise("H-19")
def test_foreign_ids_in_a_query_or_a_header_are_not_found(site: Site) -> None:
    theirs = Theirs(site)
    mine = site.parked(tenant="t_b")
    client = site.as_("agent", "t_b")
    before = rows_of(site, "t_a")

    for path, query, status in (
        ("/v1/runs", {"cursor": theirs.run}, 404),
        ("/v1/questions", {"cursor": theirs.question}, 404),
        ("/v1/questions", {"run_id": theirs.run}, 404),
        ("/v1/runs", {"tenant": "t_a"}, 422),
        ("/v1/questions", {"tenant": "t_a"}, 422),
    ):
        answer = client.get(path, params=query)
        assert answer.status_code == status, answer.text
        assert hides(theirs, answer.text, echoed=next(iter(query.values()))), answer.text

    by_thread = client.get("/v1/runs", params={"thread": "thread-a"})
    assert by_thread.json() == {"items": [], "next": None}
    assert [run["id"] for run in client.get("/v1/runs").json()["items"]] == [mine]
    assert [q["run_id"] for q in client.get("/v1/questions?state=all").json()["items"]] == [mine]

    events = f"/v1/runs/{mine}/events"
    crossed = client.get(events, headers={"Last-Event-ID": theirs.event})
    assert crossed.status_code == 422
    assert hides(theirs, crossed.text)

    # the same key at another tenant is another key
    sent = client.post(
        "/v1/runs",
        json={"agent": "refund", "input": {"ticket": "SECRET"}},
        headers={"Idempotency-Key": "key-a"},
    )
    assert sent.status_code == 201
    assert sent.json()["tenant"] == "t_b"
    assert sent.json()["id"] != theirs.run
    assert rows_of(site, "t_a") == before


@pytest.mark.promise("H-19")
def test_foreign_ids_in_a_body_never_override_the_key(site: Site) -> None:
    theirs = Theirs(site)
    mine = site.parked(tenant="t_b")
    before = rows_of(site, "t_a")
    agent, supervisor = site.as_("agent", "t_b"), site.as_("supervisor", "t_b")

    for extra in (
        {"tenant": "t_a"},
        {"id": theirs.run},
        {"run_id": theirs.run},
        {"config": {"configurable": {"thread_id": "t_a/refund/thread-a"}}},
        {"configurable": {"thread_id": "thread-a"}},
        {"decided_by": "t_a"},
    ):
        assert agent.post("/v1/runs", json={"agent": "echo", **extra}).status_code == 422
    approve = supervisor.post(f"/v1/runs/{mine}/approve", json={"questions": [theirs.question]})
    assert approve.status_code == 404
    assert hides(theirs, approve.text, echoed=theirs.question)
    for reply_id, call_id in ((theirs.run, "refund"), (mine, theirs.question)):
        event = {
            "type": "USER_CONFIRM_RESULT",
            "reply_id": reply_id,
            "confirm_results": [{"confirmed": True, "tool_call_id": call_id}],
        }
        answer = supervisor.post("/v1/runs", json=event)
        assert answer.status_code == 404, answer.text
        assert hides(theirs, answer.text, echoed=reply_id + call_id)

    assert rows_of(site, "t_a") == before


@pytest.mark.promise("H-19")
def test_another_tenants_thread_is_simply_another_thread(site: Site) -> None:
    """In graph mode the thread's state lives in LangGraph's tables: it must not be shared."""
    theirs = site.durable.submit("ask", {"ticket": "SECRET"}, tenant="t_a", thread="shared")
    site.work()
    agent = site.as_("agent", "t_b")

    for thread in ("shared", "t_a/ask/shared", theirs):
        sent = agent.post(
            "/v1/runs", json={"agent": "ask", "input": {"ticket": "mine"}, "thread": thread}
        )
        assert sent.status_code == 201
        site.work()
        run = agent.get(f"/v1/runs/{sent.json()['id']}").json()
        assert run["status"] == "waiting_human"
        assert "SECRET" not in str(run)
    assert len(site.durable.questions(run_id=theirs)) == 1


@pytest.mark.promise("H-19")
def test_a_slash_in_a_name_does_not_open_another_tenants_thread(site: Site) -> None:
    site.durable.submit("ask", {"ticket": "SECRET"}, tenant="t_a", thread="ask/one")
    site.work()

    crossing = site.durable.submit("ask", {}, tenant="t_a/ask", thread="one")
    site.work()

    run = site.durable.get(crossing)
    assert run.status.value == "waiting_human"
    assert "SECRET" not in str(run.questions)


@pytest.mark.parametrize(
    "id_",
    ["'; DROP TABLE runs; --", "%00", "%", "%25", "🙂", "x" * 300, "..", "a%0Ab", "%ff", "\\", '"'],
)
def test_an_odd_id_is_not_found(site: Site, id_: str) -> None:
    supervisor = site.as_("supervisor")
    for method, path in paths(site):
        body = BODIES.get(path.rsplit("/", 1)[-1])
        answer = supervisor.request(method, re.sub(r"\{\w+\}", lambda _: id_, path), json=body)
        assert answer.status_code in (404, 405), (method, path, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
