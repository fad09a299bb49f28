"""The page's doors: sessions, forged forms, headers, languages. No browser needed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from langgraph_durable import Compensation, RunContext
from langgraph_durable.errors import BadInput
from langgraph_durable.web.page.texts import TEXTS, choose
from tests.web.conftest import Site


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url  # the page asks for nothing that the API's tests don't ask on both


def enter(site: Site, role: str = "supervisor", tenant: str = "t_a") -> TestClient:
    client = TestClient(site.app, follow_redirects=False, raise_server_exceptions=False)
    site.clients.append(client)
    answer = client.post("/login", data={"secret": site.secret(role, tenant)})
    assert answer.status_code == 303
    return client


def token_in(html: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', html)
    assert found is not None
    return found.group(1)


def test_the_login_opens_a_session_that_no_script_and_no_other_site_can_use(site: Site) -> None:
    client = TestClient(site.app, follow_redirects=False)
    assert client.get("/").headers["location"] == "/login"
    assert client.get("/live").status_code == 303

    wrong = client.post("/login", data={"secret": "lgd_wrong"})
    assert wrong.status_code == 401
    assert "set-cookie" not in wrong.headers
    secret = site.secret("supervisor")
    right = client.post("/login", data={"secret": f" {secret} "})
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert secret not in cookie
    secure = TestClient(site.app, base_url="https://testserver", follow_redirects=False)
    assert "Secure" in secure.post("/login", data={"secret": secret}).headers["set-cookie"]
    assert client.get("/").status_code == 200


def test_a_forged_or_old_cookie_opens_nothing(site: Site) -> None:
    client = enter(site)
    name, value = next(iter(client.cookies.items()))
    for spoilt in (value[:-2], "x" + value, "", "a.b.c", value.replace(".", "..")):
        stranger = TestClient(site.app, follow_redirects=False, cookies={name: spoilt})
        assert stranger.get("/").status_code == 303
    site.durable.keys.revoke(site.durable.keys.verify(site.secret("supervisor")).id)
    assert client.get("/").status_code == 303
    assert client.get("/", headers={"X-Part": "1"}).status_code == 401


def test_logging_out_ends_the_session(site: Site) -> None:
    client = enter(site)
    client.post("/logout", data={"token": token_in(client.get("/").text)})
    assert client.get("/").status_code == 303


def test_a_form_without_the_sessions_token_does_nothing(site: Site) -> None:
    run_id = site.parked()
    question_id = site.question(run_id)
    client, other = enter(site), enter(site, "operator")
    foreign = token_in(other.get("/").text)

    for path, data in (
        (f"/questions/{question_id}", {"choice": "approve"}),
        (f"/runs/{run_id}/approve", {"question": question_id}),
        (f"/runs/{run_id}/cancel", {}),
        (f"/runs/{run_id}/retry", {}),
        ("/logout", {}),
    ):
        for token in ({}, {"token": ""}, {"token": foreign}, {"token": "é"}):
            assert client.post(path, data={**data, **token}).status_code == 403
    mine = {"token": token_in(client.get("/").text), "choice": "approve"}
    crossed = {"Sec-Fetch-Site": "cross-site"}
    assert client.post(f"/questions/{question_id}", data=mine, headers=crossed).status_code == 403
    secret = {"secret": site.secret("supervisor")}
    assert client.post("/login", data=secret, headers=crossed).status_code == 403
    assert site.durable.get(run_id).status.value == "waiting_human"

    assert client.post(f"/questions/{question_id}", data=mine).status_code == 303
    assert site.durable.get(run_id).status.value == "queued"


def test_a_session_cookie_is_no_key_of_the_api(site: Site) -> None:
    assert enter(site).get("/v1/runs").status_code == 401


def test_every_answer_carries_the_strict_headers_and_no_inline_script(site: Site) -> None:
    run_id = site.parked()
    client = enter(site, "operator")
    pages = ["/", "/login", "/runs", f"/runs/{run_id}", f"/questions/{site.question(run_id)}"]
    for path in [*pages, "/runs/none", "/language?to=zh"]:
        answer = client.get(path)
        csp = answer.headers["content-security-policy"]
        assert "default-src 'none'" in csp
        assert "unsafe" not in csp
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<script(?! src=\"/static/)", answer.text), path
        assert not re.search(r"<style|\sstyle=|\son\w+=", answer.text), path
    for name in ("page.js", "page.css", "icon.svg"):
        assert client.get(f"/static/{name}").status_code == 200
    assert client.get("/static/%2e%2e/routes.py").status_code == 404


@pytest.mark.promise("H-19")
def test_another_tenants_ids_are_not_found_on_the_page_either(site: Site) -> None:
    run_id = site.parked(ticket="SECRET")
    question_id = site.question(run_id)
    client = enter(site, "supervisor", "t_b")
    token = {"token": token_in(client.get("/").text)}
    before = site.durable.events(run_id)

    for path in (
        f"/runs/{run_id}",
        f"/questions/{question_id}",
        f"/?cursor={question_id}",
        f"/runs?cursor={run_id}",
        f"/live?run_id={run_id}",
    ):
        answer = client.get(path)
        assert answer.status_code == 404, path
        assert "SECRET" not in answer.text
        assert "create_refund" not in answer.text
    for path, data in (
        (f"/questions/{question_id}", {"choice": "approve"}),
        (f"/runs/{run_id}/approve", {"question": question_id}),
        (f"/runs/{run_id}/cancel", {}),
        (f"/runs/{run_id}/retry", {}),
    ):
        assert client.post(path, data={**data, **token}).status_code == 404
    assert "SECRET" not in client.get("/").text + client.get("/runs").text
    assert site.durable.events(run_id) == before


def test_who_may_not_decide_sees_what_is_asked_and_no_buttons(site: Site) -> None:
    run_id = site.parked()
    question_id = site.question(run_id)
    client = enter(site, "agent")

    shown = client.get("/").text
    assert "amount_cents" in shown
    assert 'value="approve"' not in shown
    assert "supervisor" in shown
    sent = {"token": token_in(shown), "choice": "approve"}
    assert client.post(f"/questions/{question_id}", data=sent).status_code == 403
    assert client.post(f"/runs/{run_id}/cancel", data=sent).status_code == 403


def test_without_a_script_the_forms_work_and_say_what_is_wrong(site: Site) -> None:
    run_id = site.parked()
    client = enter(site)
    address = f"/questions/{site.question(run_id)}"
    token = token_in(client.get("/").text)

    for arguments in (
        "no json",
        "[]",
        '{"amount_cents": NaN}',
        "[" * 100_000,
        '{"amount_cents": "x"}',
    ):
        answer = client.post(
            address, data={"token": token, "choice": "edit", "arguments": arguments}
        )
        assert answer.status_code == 422, arguments[:20]
        assert 'role="alert"' in answer.text
    assert client.post(address, data={"token": token, "choice": "maybe"}).status_code == 422
    huge = {"token": token, "choice": "reject", "reason": "x" * 2_000_000}
    assert client.post(address, data=huge).status_code == 413
    good = {"token": token, "choice": "edit", "arguments": '{"amount_cents": 5}'}
    assert client.post(address, data=good).headers["location"] == "/"
    again = client.post(address, data={"token": token, "choice": "reject"})
    assert again.status_code == 409
    assert "edit" in again.text


def test_what_a_run_says_is_text_and_never_markup(site: Site) -> None:
    nasty = "<img src=x onerror=alert(1)>"
    run_id = site.parked("ask", ticket=nasty)
    client = enter(site)
    for path in ("/", f"/runs/{run_id}"):
        assert nasty not in client.get(path).text
        assert "&lt;img src=x onerror=alert(1)&gt;" in client.get(path).text


# --- languages -------------------------------------------------------------------------


def test_both_languages_say_everything() -> None:
    assert TEXTS["en"].keys() == TEXTS["zh"].keys()
    assert all(text.strip() for texts in TEXTS.values() for text in texts.values())


@pytest.mark.parametrize(
    ("cookie", "accept", "language"),
    [
        (None, None, "en"),
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "en-GB,zh;q=0.9", "en"),
        (None, "fr, zh;q=0.3, en;q=0.1", "zh"),
        (None, "zh;q=0, fr", "en"),
        (None, ";;,q=,\0", "en"),
        ("zh", "en", "zh"),
        ("xx", "zh", "zh"),
    ],
)
def test_the_language_is_the_visitors(cookie: Any, accept: Any, language: str) -> None:
    assert choose(cookie, accept) == language


def test_the_choice_of_a_language_leads_back_and_nowhere_else(site: Site) -> None:
    client = enter(site)
    assert client.get("/language?to=zh&back=/runs").headers["location"] == "/runs"
    assert '<html lang="zh">' in client.get("/").text
    for back in ("//evil.example", "https://evil.example", "/\\evil.example", "", "x"):
        answer = client.get("/language", params={"to": "en", "back": back})
        assert answer.headers["location"] == "/"
    assert client.get("/language?to=xx").status_code == 303


@pytest.mark.promise("S-45")
def test_a_run_that_was_undone_shows_both_what_it_did_and_what_undid_it(site: Site) -> None:
    """On the page, in the API, and no button to retry it."""

    @site.durable.services.tools.tool(effect="idempotent")
    def put(what: str, idempotency_key: str) -> str:
        return what

    @site.durable.agent("undone")
    async def undone(ctx: RunContext, given: object) -> None:
        await ctx.tool("a", "put", {"what": "x"}, compensate=Compensation("put", {"what": ""}))
        raise BadInput("no")

    run_id = site.durable.submit("undone", {}, tenant="t_a")
    site.work()
    shown = enter(site, "operator").get(f"/runs/{run_id}").text
    assert "compensated by compensate:a" in shown
    assert "What it did is being undone" in shown
    assert f"/runs/{run_id}/retry" not in shown
    operator = site.as_("operator")
    told = operator.get(f"/v1/runs/{run_id}").json()
    assert (told["status"], told["unwinding"]) == ("failed", "failed")
    assert [s["undone"] for s in told["steps"]] == ["compensated by compensate:a", None]
    assert [q["kind"] for q in told["questions"]] == ["review"]
    assert operator.post(f"/v1/runs/{run_id}/retry").status_code == 409
