"""Submitting, names and texts: what enters, what is found, and what no database may refuse."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from desk import Desk, at_once, question, step
from sqlalchemy.exc import OperationalError

from langgraph_durable.errors import BadInput, Conflict, NotFound
from langgraph_durable.runs import Asked, Broke, Decision, Done, Lease, Retried, Run, Status
from langgraph_durable.store import Inbox, Page, schema
from langgraph_durable.values import Types, decode, encode

ODD = ["a\0b", "half \ud83d emoji", "it's", '"quoted"', "100%s %(x)s :name", "日本 🎉", "x" * 300]
NAMES = ODD[2:]  # the first two no PostgreSQL keeps


@pytest.mark.promise("S-03")
def test_the_same_idempotency_key_returns_the_same_run_in_whatever_state(desk: Desk):
    first = desk.submit(idempotency_key="ticket-42")
    assert desk.submit(idempotency_key="ticket-42").id == first.id
    desk.store.settle(desk.take().lease, Done('"out"'))
    again = desk.submit(idempotency_key="ticket-42")
    assert (again.id, again.status, again.output) == (first.id, Status.SUCCEEDED, "out")
    assert desk.types(first).count("run_submitted") == 1


@pytest.mark.promise("S-03")
@pytest.mark.parametrize("other", [{"input": '{"n":1}'}, {"agent": "b"}])
def test_an_idempotency_key_with_another_request_is_a_conflict(desk: Desk, other: dict[str, str]):
    first = desk.submit(idempotency_key="k")
    with pytest.raises(Conflict, match=f"'k' was already used by run {first.id}"):
        desk.submit(**({"agent": "a", "idempotency_key": "k"} | other))
    assert len(desk.store.list_runs(Page())) == 1


@pytest.mark.promise("S-03")
def test_an_idempotency_key_belongs_to_its_tenant(desk: Desk):
    assert desk.submit(idempotency_key="k").id != desk.submit(tenant="o", idempotency_key="k").id


@pytest.mark.promise("S-03")
def test_submits_at_once_with_one_key_make_one_run(live: Desk):
    for round_ in range(15):
        got = at_once(*[lambda: live.submit(idempotency_key=f"k{round_}")] * 4)  # noqa: B023
        assert all(isinstance(one, Run) for one in got), got
        assert len({run.id for run in got}) == 1
        assert live.types(got[0]).count("run_submitted") == 1


@pytest.mark.promise("S-01")
def test_a_submit_whose_answer_was_lost_is_not_made_twice(desk: Desk):
    run_id = str(uuid.uuid4())
    assert desk.submit(id=run_id) == desk.submit(id=run_id)
    assert desk.types(run_id) == ["run_submitted"]


@pytest.mark.promise("S-39")
def test_runs_are_listed_newest_first_by_tenant_status_agent_and_thread_in_pages(desk: Desk):
    runs = [desk.submit(thread=f"c{i}", priority=-i) for i in range(5)]
    desk.submit("b", tenant="other")
    desk.store.settle(desk.take().lease, Done("1"))
    page = desk.store.list_runs(Page(tenant="t", limit=2))
    rest = desk.store.list_runs(Page(tenant="t", before=(page[-1].created_at, page[-1].id)))
    assert [run.id for run in [*page, *rest]] == [run.id for run in reversed(runs)]
    ended = desk.store.list_runs(Page(status=Status.SUCCEEDED))
    assert [run.id for run in ended] == [runs[0].id]
    assert [run.id for run in desk.store.list_runs(Page(thread="c3"))] == [runs[3].id]
    assert len(desk.store.list_runs(Page(agent="b"))) == 1


@pytest.mark.promise("S-39")
def test_a_page_of_more_runs_than_a_statement_takes_variables_is_listed(on_sqlite: Desk):
    """SQLite's limit is 32,766 or more; it is lowered, so that a small page shows the same."""

    def lower(connection: sqlite3.Connection, _record: object) -> None:
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 800)

    on_sqlite.engine.dispose()
    sa.event.listen(on_sqlite.engine, "connect", lower)
    row = (
        "INSERT INTO runs (id, tenant, agent, version, mode, thread, status, input, run_after, "
        "created_at, asked) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE "
        "i < 1700) SELECT 'r' || i, 't', 'a', '1', 'steps', 'r' || i, 'succeeded', '{}', "
        "'2026-01-01 00:00:00', '2026-01-01 00:00:00', 1 FROM n"
    )
    with on_sqlite.engine.begin() as tx:
        tx.exec_driver_sql(row)
    with on_sqlite.engine.connect() as tx, pytest.raises(OperationalError, match="variables"):
        tx.execute(sa.select(schema.runs.c.id).where(schema.runs.c.id.in_(["r"] * 801)))
    assert len(on_sqlite.store.list_runs(Page(limit=1_700))) == 1_700


@pytest.mark.promise("H-13")
@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_ids_that_cannot_exist_are_not_found_and_never_an_error_of_the_database(
    desk: Desk, name: str
):
    desk.submit()
    store = desk.store
    lookups: list[Callable[[], object]] = [
        lambda: store.get(name),
        lambda: store.get("r", name),
        lambda: store.question(name),
        lambda: store.question("q", name),
        lambda: desk.decide(name),
        lambda: desk.decide("q", tenant=name),
        lambda: store.cancel(name, by="x"),
        lambda: store.cancel("r", by="x", tenant=name),
        lambda: store.retry(name, by="x"),
        lambda: store.retry("r", by="x", tenant=name),
    ]
    for lookup in lookups:
        with pytest.raises(NotFound):
            lookup()
    assert store.list_runs(Page(tenant=name)) == []
    assert store.list_runs(Page(agent=name)) == []
    assert store.list_runs(Page(thread=name)) == []
    assert store.list_questions(Inbox(tenant=name)) == []
    assert store.list_questions(Inbox(run_id=name)) == []
    assert store.list_questions(Inbox(role=name)) == []
    assert list(store.list_events(name)) == []
    assert store.list_steps(name) == []
    assert store.get_step(name, name) is None


@pytest.mark.promise("H-13")
@pytest.mark.parametrize("name", ODD, ids=ascii)
@pytest.mark.parametrize("field", ["tenant", "thread", "agent", "version", "idempotency_key"])
def test_a_name_is_kept_as_it_is_or_refused_as_bad_input(desk: Desk, name: str, field: str):
    if name not in NAMES:
        with pytest.raises(BadInput):
            desk.submit(**{field: name})
        assert desk.store.list_runs(Page()) == []
        return
    run = desk.submit(**{field: name})
    assert getattr(desk.run(run.id), field) == name


@pytest.mark.promise("H-19")
def test_a_tenant_with_a_nul_is_not_taken_for_its_cleaned_form(desk: Desk):
    run = desk.submit(tenant="a\u2400b")
    with pytest.raises(NotFound):
        desk.store.get(run.id, "a\0b")
    assert desk.store.list_runs(Page(tenant="a\0b")) == []


@pytest.mark.promise("H-13")
@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_odd_texts_in_values_reasons_errors_and_names_of_people_never_stop_a_run(
    desk: Desk, text: str
):
    types = Types()

    def value(of: object) -> str:
        return encode(of, types=types, where="test")

    lease = desk.started(input=value({text: text}), actor=text).lease
    assert desk.run(lease).input == {text: text}
    recorded = step("k", value=text)
    desk.store.put_step(lease, recorded)
    kept = desk.store.get_step(lease.run_id, "k")
    assert kept is not None
    assert decode(kept.value or "", types=types) == text

    error = {"type": "E", "message": text, "reason": text}
    desk.store.settle(lease, Retried(error, progressed=True), jitter=0.0)
    assert desk.run(lease).error == error
    asked = question(payload={text: [text]}, default=text, tool=text, schema={"title": text})
    lease = desk.take().lease
    desk.store.note(lease, "t", "request_changed", {"requested": text})
    desk.store.settle(lease, Asked((asked,)))
    assert desk.store.question(asked.id).payload == {text: [text]}
    assert desk.store.question(asked.id).default == text
    decided = desk.decide(asked.id, Decision.edit(text, {text: text}, text))
    assert decided.decision == Decision.edit(text, {text: text}, text)
    lease = desk.take().lease
    desk.store.settle(lease, Done(value({text: text})))
    assert desk.run(lease).output == {text: text}

    lease = desk.started().lease
    desk.store.settle(lease, Broke(error))
    desk.store.retry(lease.run_id, by=text)
    desk.store.cancel(lease.run_id, by=text)
    assert desk.status(lease) is Status.CANCELLED


@pytest.mark.promise("H-13")
@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_a_worker_of_an_odd_name_works(desk: Desk, text: str):
    desk.submit()
    desk.store.announce(text, [("a", "1")])
    claim = desk.take(text)
    assert claim.lease == Lease(claim.run.id, 1, text)
    assert desk.store.settle(claim.lease, Done("1")) is Status.SUCCEEDED
    desk.store.depart(text)


@pytest.mark.promise("H-13")
@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_odd_texts_beside_a_steps_value_are_kept_or_cleaned(desk: Desk, text: str):
    lease = desk.started().lease
    odd = step("k", place=text, request=text, error=text, name=text)
    desk.store.put_step(lease, odd)
    kept = desk.store.get_step(lease.run_id, "k")
    assert kept is not None
    if text in NAMES:
        assert (kept.place, kept.request, kept.error, kept.name) == (text,) * 4
    else:
        assert len({kept.place, kept.request, kept.error, kept.name}) == 1
