"""Retention: finished runs go whole, parked and running ones stay."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
import sqlalchemy as sa
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from langgraph_durable import Decision, Durable, Status, Worker
from langgraph_durable.errors import BadInput, NotFound
from langgraph_durable.testing import FakeClock

DAY = 86_400.0


class State(TypedDict, total=False):
    asked: Any


def desk(url: str, clock: FakeClock) -> Durable:
    def ask(state: State) -> State:
        return {"asked": interrupt("sure?")}

    graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
    durable = Durable(url, clock=clock)
    durable.graph("asks", graph, mode="graph")
    return durable


def rows_of(durable: Durable, table: str, column: str, value: str) -> int:
    with durable.store.engine.connect() as connection:
        count = sa.select(sa.func.count()).select_from(sa.table(table, sa.column(column)))
        found = connection.execute(count.where(sa.column(column) == value)).scalar_one()
        connection.rollback()
    return int(found)


def finish(durable: Durable, thread: str | None = None) -> str:
    run_id = durable.submit("asks", {}, tenant="t_acme", thread=thread)
    worker = Worker(durable)
    worker.run_until_idle()
    (question,) = durable.questions(run_id=run_id)
    durable.decide(question.id, Decision.respond("mei", True))
    worker.run_until_idle()
    assert durable.get(run_id).status is Status.SUCCEEDED
    return run_id


def test_an_old_run_goes_with_all_that_belongs_to_it(database_url: str) -> None:
    clock = FakeClock()
    durable = desk(database_url, clock)
    run_id = finish(durable)
    thread = f"t_acme/asks/{run_id}"
    assert rows_of(durable, "checkpoints", "thread_id", thread) > 0
    clock.advance(31 * DAY)
    assert durable.purge(30 * DAY) == 1
    with pytest.raises(NotFound):
        durable.get(run_id)
    for table in ("steps", "questions", "events", "outbox"):
        assert rows_of(durable, table, "run_id", run_id) == 0
    assert rows_of(durable, "checkpoints", "thread_id", thread) == 0
    durable.close()


def test_parked_young_and_foreign_runs_stay(database_url: str) -> None:
    clock = FakeClock()
    durable = desk(database_url, clock)
    parked = durable.submit("asks", {}, tenant="t_acme")
    Worker(durable).run_until_idle()
    clock.advance(400 * DAY)
    young = finish(durable)
    clock.advance(DAY)
    assert durable.purge(30 * DAY) == 0
    clock.advance(60 * DAY)
    assert durable.purge(30 * DAY, tenant="t_other") == 0
    assert durable.purge(30 * DAY, tenant="t_acme") == 1
    assert durable.get(parked).status is Status.WAITING_HUMAN
    with pytest.raises(NotFound):
        durable.get(young)
    durable.close()


def test_a_conversation_is_remembered_while_a_run_names_its_thread(database_url: str) -> None:
    clock = FakeClock()
    durable = desk(database_url, clock)
    finish(durable, thread="chat")
    clock.advance(31 * DAY)
    later = finish(durable, thread="chat")
    assert durable.purge(30 * DAY) == 1
    assert rows_of(durable, "checkpoints", "thread_id", "t_acme/asks/chat") > 0
    clock.advance(31 * DAY)
    assert durable.purge(30 * DAY) == 1
    assert rows_of(durable, "checkpoints", "thread_id", "t_acme/asks/chat") == 0
    with pytest.raises(NotFound):
        durable.get(later)
    durable.close()


@pytest.mark.parametrize("age", [-1.0, float("nan")])
def test_an_age_that_is_none_is_refused(age: float) -> None:
    durable = Durable("sqlite://")
    with pytest.raises(BadInput, match="older_than_seconds"):
        durable.purge(age)
    durable.close()
