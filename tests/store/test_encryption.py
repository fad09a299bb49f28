"""Encryption at rest: what the database holds, keys that rotate, keys that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

import pytest
import sqlalchemy as sa
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from typer.testing import CliRunner

from langgraph_durable import Decision, Durable, Rule, RunContext, Status, ToolHub, Worker
from langgraph_durable.cli import app
from langgraph_durable.encryption import Keyring, keyring, new_key
from langgraph_durable.errors import EncryptionError
from langgraph_durable.store import schema
from langgraph_durable.tools import digest

MARKER = "marker-b7f2"
OLD, NEW = new_key(), new_key()


class State(TypedDict, total=False):
    said: str
    held: dict[str, Any]
    answer: str


def desk(url: str, keys: list[str] | None) -> Durable:
    hub = ToolHub()

    @hub.tool(effect="idempotent")
    def refund(note: str, idempotency_key: str) -> dict[str, str]:
        return {"paid": note}

    @hub.tool(effect="read")
    def breaks(note: str) -> None:
        raise ValueError(f"broken: {note}")

    durable = Durable(
        url,
        tools=hub,
        rules=[Rule("ask", tool="refund", approvals=2)],
        outbox={"mail": lambda message: None},
        notify=[lambda message: None],
        encryption_keys=keys,
    )

    @durable.agent("pay", max_attempts=1)
    async def pay(ctx: RunContext, inp: Any) -> Any:
        note = await ctx.once("note", lambda: inp["note"], request=inp)
        await ctx.emit("told", "mail", {"note": note})
        paid = await ctx.tool("refund", "refund", {"note": note})
        if inp.get("breaks"):
            await ctx.tool("breaks", "breaks", {"note": note})
        return paid

    def hold(state: State) -> State:
        return {"said": MARKER, "held": {"deep": [MARKER]}}

    def ask(state: State) -> State:
        return {"answer": interrupt({"about": state["said"]})}

    builder = StateGraph(State)
    builder.add_node("hold", hold)
    builder.add_node("ask", ask)
    builder.add_edge(START, "hold")
    builder.add_edge("hold", "ask")
    builder.add_edge("ask", END)
    durable.graph("graph", builder.compile(), mode="graph")
    return durable


def approve_all(durable: Durable) -> None:
    for by in ("mei", "ada"):
        for question in durable.questions():
            if question.kind == "tool":
                durable.decide(question.id, Decision.approve(by, reason=f"{MARKER} is fine"))
    for question in durable.questions():
        durable.decide(question.id, Decision.respond("mei", f"yes, {MARKER}"))
    Worker(durable).run_until_idle()


def lived_in(url: str, keys: list[str] | None) -> list[str]:
    """Leave runs behind: one that waits, two that ended, one that broke."""
    durable = desk(url, keys)
    ended = [
        durable.submit("pay", {"note": MARKER}),
        durable.submit("pay", {"note": MARKER, "breaks": True}),
        durable.submit("graph", {"said": MARKER}),
    ]
    Worker(durable).run_until_idle()
    approve_all(durable)
    waiting = [durable.submit("pay", {"note": MARKER}), durable.submit("graph", {"said": MARKER})]
    Worker(durable).run_until_idle()
    durable.send(waiting[0], "told", MARKER)
    durable.close()
    return [*ended, *waiting]


def stored(url: str) -> dict[str, str]:
    """Return all that the tables hold, by table and column."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    found: dict[str, str] = {}
    with engine.connect() as tx:
        for table in sa.inspect(tx).get_table_names():
            for row in tx.exec_driver_sql(f'SELECT * FROM "{table}"').mappings():
                for name, value in row.items():
                    raw = bytes(value) if isinstance(value, bytes | memoryview) else b""
                    text = f"{value} {json.dumps(value, default=str)} {raw!r}"
                    found[f"{table}.{name}"] = found.get(f"{table}.{name}", "") + text
    return found


def places_of(url: str, text: str) -> list[str]:
    return sorted(place for place, held in stored(url).items() if text in held)


def test_nothing_of_a_payload_is_in_an_encrypted_database(database_url: str) -> None:
    ended = lived_in(database_url, [OLD])
    assert places_of(database_url, MARKER) == []
    assert places_of(database_url, digest({"note": MARKER})) == []
    if database_url.startswith("sqlite"):
        folder = Path(str(sa.make_url(database_url).database)).parent
        assert not any(MARKER.encode() in path.read_bytes() for path in folder.iterdir())
    durable = desk(database_url, [OLD])
    approve_all(durable)  # the runs that waited go on from what was sealed
    runs = [durable.get(run_id) for run_id in ended]
    assert [run.status for run in runs] == [
        Status.SUCCEEDED, Status.FAILED, Status.SUCCEEDED, Status.SUCCEEDED, Status.SUCCEEDED,
    ]  # fmt: skip
    assert runs[3].output == {"paid": MARKER}
    assert runs[4].output["answer"] == f"yes, {MARKER}"
    assert (runs[1].error or {})["message"] == f"broken: {MARKER}"
    assert durable.store.was_refused("default", "local.refund", digest({"note": MARKER})) is False
    assert durable.store.stats(7).key_conflicts == 0
    durable.close()


def test_without_keys_payloads_are_plain_and_found(sqlite_url: str) -> None:
    """The search above is one that finds: the same runs, not encrypted."""
    lived_in(sqlite_url, None)
    found = places_of(sqlite_url, MARKER)
    sealed = {
        f"{table.name}.{column.name}"
        for table in schema.metadata.sorted_tables
        for column in table.columns
        if getattr(column.type, "place", None)
    }
    assert {"runs.input", "runs.output", "runs.error", "steps.value", "steps.request"} <= set(found)
    assert {"questions.payload", "questions.decision", "outbox.payload", "events.data"} <= set(
        found
    )
    assert "signals.payload" in found
    ours = {place for place in found if place.partition(".")[0] in schema.metadata.tables}
    assert ours <= sealed


def test_keys_rotate_beside_rows_of_every_age(database_url: str) -> None:
    waiting = [lived_in(database_url, None)[3], lived_in(database_url, [OLD])[3]]
    both = desk(database_url, [NEW, OLD])
    assert both.get(waiting[0]).input == both.get(waiting[1]).input == {"note": MARKER}
    assert both.store.reseal() > 20
    assert both.store.reseal() == 0
    both.close()

    assert [p for p in places_of(database_url, MARKER) if p != "checkpoints.checkpoint"] == []
    new = desk(database_url, [NEW])
    approve_all(new)
    assert [new.get(run_id).output for run_id in waiting] == [{"paid": MARKER}] * 2
    graphs = [run for run in new.runs(agent="graph") if run.status is Status.SUCCEEDED]
    assert len(graphs) == 4
    new.close()


@pytest.mark.parametrize("keys", [None, [NEW], [new_key(), NEW]])
def test_wrong_keys_are_refused_before_anything_is_written(
    database_url: str, keys: list[str] | None
) -> None:
    desk(database_url, [OLD]).close()
    before = stored(database_url)
    with pytest.raises(EncryptionError, match=r"encryption_keys=|sealed with the key"):
        desk(database_url, keys)
    assert stored(database_url) == before


def test_a_lookup_by_digest_works_on_blinded_ones(database_url: str) -> None:
    durable = desk(database_url, [OLD])
    durable.submit("pay", {"note": MARKER})
    Worker(durable).run_until_idle()
    [question] = durable.questions()
    durable.decide(question.id, Decision.reject("mei", "no"))
    assert durable.store.was_refused("default", "local.refund", digest({"note": MARKER}))
    assert not durable.store.was_refused("default", "local.refund", digest({"note": "other"}))
    durable.close()


def test_a_value_that_was_moved_or_changed_does_not_open() -> None:
    keys = Keyring([OLD])
    sealed = keys.seal("yes", "questions.decision")
    assert keys.open(sealed, "questions.decision") == "yes"
    assert keys.seal("yes", "questions.decision") != sealed
    with pytest.raises(EncryptionError, match="changed, or moved"):
        keys.open(sealed, "runs.output")
    with pytest.raises(EncryptionError, match="not among the encryption keys"):
        Keyring([NEW]).open(sealed, "questions.decision")
    assert keys.open("enc1:not a sealed text", "steps.request") == "enc1:not a sealed text"


def test_the_command_line_makes_a_key_and_rotates(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk(sqlite_url, None).submit("pay", {"note": MARKER})
    made = CliRunner().invoke(app, ["encryption", "key"]).output.strip()
    rotate = ["encryption", "rotate", "--db", sqlite_url]
    refused = CliRunner().invoke(app, rotate)
    assert isinstance(refused.exception, EncryptionError)
    monkeypatch.setenv("LANGGRAPH_DURABLE_ENCRYPTION_KEYS", made)
    assert "rows encrypted with the first key" in CliRunner().invoke(app, rotate).output
    assert places_of(sqlite_url, MARKER) == []


def test_what_is_no_key_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EncryptionError, match="encryption key 2 is not 32 bytes") as refused:
        Keyring([OLD, "hunter2"])
    assert "hunter2" not in str(refused.value)
    assert OLD not in repr(Keyring([OLD]))
    monkeypatch.setenv("LANGGRAPH_DURABLE_ENCRYPTION_KEYS", f"{NEW}, {OLD}")
    found = keyring()
    assert found is not None
    assert found.first == Keyring([NEW]).first
    assert keyring([]) is None
