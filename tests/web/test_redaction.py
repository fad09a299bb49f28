"""Redacted fields: shown to nobody, and the tool gets the true ones."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import Field
from typer.testing import CliRunner

from langgraph_durable import Decision, Durable, Retry, RunContext, Status, ToolHub
from langgraph_durable.cli import app
from langgraph_durable.errors import BadInput
from langgraph_durable.redaction import REDACTED, Redaction, restored
from langgraph_durable.tools import digest
from tests.web.conftest import Site
from tests.web.web_shop import PEPPER

IBAN, PIN = "DE02120300000000202051", "pin-4711-pin"
GIVEN = {"to": {"iban": IBAN, "name": "Ada"}, "pin": PIN, "cents": 4200}


def bank(url: str, paid: list[Any]) -> Durable:
    hub = ToolHub()

    @hub.tool(effect="idempotent", asks=True)
    def pay(
        to: dict[str, str],
        pin: Annotated[str, Field(json_schema_extra={"sensitive": True})],
        cents: int,
        idempotency_key: str,
    ) -> dict[str, Any]:
        """Pay."""
        paid.append({"to": to, "pin": pin, "cents": cents})
        return {"to": to, "cents": cents}

    durable = Durable(url, tools=hub, pepper=PEPPER, redact=["IBAN"])

    @durable.agent("pay", retry=Retry(first_seconds=0))
    async def agent(ctx: RunContext, inp: Any) -> Any:
        given = {"to": inp["to"], "pin": PIN, "cents": inp["cents"]}
        first = await ctx.tool("pay", "pay", given)
        if inp.get("again"):
            await ctx.ask("changes?", {"iban": IBAN})
            inp["to"]["iban"] = "changed"
        return first

    return durable


@pytest.fixture
def paid() -> list[Any]:
    return []


@pytest.fixture
def bank_site(database_url: str, paid: list[Any]) -> Iterator[Site]:
    site = Site(bank(database_url, paid), [])
    yield site
    for client in site.clients:
        client.close()
    site.durable.close()


def given() -> dict[str, Any]:
    return {"to": dict(GIVEN["to"]), "cents": 4200}  # type: ignore[call-overload]


def test_a_redacted_call_is_shown_nowhere_and_made_as_it_was_asked(
    bank_site: Site, paid: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    run_id = bank_site.parked("pay", **given())
    question_id = bank_site.question(run_id)
    question = bank_site.durable.store.question(question_id)
    assert question.payload == GIVEN
    assert question.digest == digest(GIVEN)

    client = bank_site.as_("supervisor")
    shown = client.get("/v1/questions").json()["items"][0]
    assert shown["payload"] == {
        "to": {"iban": REDACTED, "name": "Ada"}, "pin": REDACTED, "cents": 4200,
    }  # fmt: skip
    page = bank_site.client()
    page.post("/login", data={"secret": bank_site.secret("supervisor")})
    told = [page.get(f"/questions/{question_id}").text, page.get(f"/runs/{run_id}").text]
    assert all(REDACTED in text and "Ada" in text for text in told)

    client.post(f"/v1/questions/{question_id}/decision", json={"choice": "approve"})
    bank_site.work()
    run = bank_site.durable.get(run_id)
    assert (run.status, paid) == (Status.SUCCEEDED, [GIVEN])
    assert run.output["to"]["iban"] == IBAN  # code of the application's own gets the value
    told += [
        client.get(f"/v1/runs/{run_id}").text,
        client.get(f"/v1/runs/{run_id}/events").text,
        page.get(f"/runs/{run_id}").text,
        caplog.text,
        repr(bank_site.durable.events(run_id)),
        repr([step.request for step in bank_site.durable.journal(run_id)]),
    ]
    assert not [text for text in told if IBAN in text or PIN in text]


def test_the_command_line_shows_markers_and_exports_only_on_demand(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank_site = Site(bank(sqlite_url, []), [])
    monkeypatch.setenv("LANGGRAPH_DURABLE_REDACT", "iban, pin")
    run_id = bank_site.parked("pay", **given())
    db = ["--db", bank_site.durable.url]
    told = [
        CliRunner().invoke(app, [*command, *db]).output
        for command in (
            ["questions", "list"],
            ["questions", "list", "--json"],
            ["runs", "show", run_id],
            ["runs", "show", run_id, "--json"],
        )
    ]
    assert all(REDACTED in text for text in (told[1], told[3]))
    assert not [text for text in told if IBAN in text or PIN in text]
    refused = CliRunner().invoke(app, ["runs", "export", run_id, *db])
    assert isinstance(refused.exception, BadInput)
    exported = CliRunner().invoke(app, ["runs", "export", run_id, "--with-values", *db]).output
    assert IBAN in exported
    bank_site.durable.close()


def test_an_edit_keeps_what_was_not_shown(bank_site: Site, paid: list[Any]) -> None:
    run_id = bank_site.parked("pay", **given())
    question = bank_site.durable.questions(run_id=run_id)[0]
    edited = {**question.shown, "cents": 100}
    with pytest.raises(BadInput, match="nothing was redacted"):
        bank_site.durable.decide(
            question.id, Decision.edit("mei", {**edited, "to": {"x": REDACTED}})
        )
    bank_site.durable.decide(question.id, Decision.edit("mei", edited))
    bank_site.work()
    assert paid == [{**GIVEN, "cents": 100}]
    decided = bank_site.durable.store.question(question.id)
    assert decided.shown_decision is not None
    assert IBAN not in json.dumps(decided.shown_decision.arguments)


def test_a_changed_call_is_told_without_its_values(bank_site: Site) -> None:
    run_id = bank_site.parked("pay", **given(), again=True)
    bank_site.durable.decide(bank_site.question(run_id), Decision.approve("mei"))
    bank_site.work()
    [asking] = bank_site.durable.questions(run_id=run_id)
    # the same key for another account: what the code of a careless deploy would do
    registered = bank_site.durable.find("pay")

    async def careless(ctx: RunContext, inp: Any) -> Any:
        return await ctx.tool("pay", "pay", {**GIVEN, "to": {"iban": "DE99", "name": "Eve"}})

    object.__setattr__(registered, "function", careless)
    bank_site.durable.decide(asking.id, Decision.respond("mei", "yes"))
    bank_site.work()
    error = bank_site.durable.get(run_id).error or {}
    assert error["type"] == "NonDeterminismError"
    assert "Ada" in error["message"]
    assert "Eve" in error["message"]
    assert not [text for text in (IBAN, "DE99", PIN) if text in error["message"]]


def test_what_has_nothing_to_redact_is_not_copied() -> None:
    value = {"a": [1, {"b": "c"}]}
    assert Redaction(frozenset({"iban"})).shown(value) is value
    assert Redaction().shown({"iban": 1}) == {"iban": 1}
    said = {"text": REDACTED}  # somebody's own words
    assert restored(said, said, said) == said
    assert restored({"a": [1, {"b": "d"}]}, value, value) == {"a": [1, {"b": "d"}]}
