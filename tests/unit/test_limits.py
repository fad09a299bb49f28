"""Limits at the door: of a worker, of prices, of a database's address."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from langgraph_durable import Durable, Worker
from langgraph_durable.errors import BadInput
from langgraph_durable.runs import Cost, Price, Usage, cost_of
from langgraph_durable.store import open_engine

NAN = float("nan")


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"lease_seconds": 0}, "lease_seconds is above 0"),
        ({"lease_seconds": -1}, "lease_seconds is above 0"),
        ({"lease_seconds": NAN}, "at most 86,400"),
        ({"lease_seconds": 1e9}, "at most 86,400"),
        ({"concurrency": 0}, "concurrency is a whole number, 1 or more"),
        ({"concurrency": 1.5}, "concurrency is a whole number"),
        ({"concurrency": True}, "concurrency is a whole number"),
        ({"drain_seconds": -0.1}, "drain_seconds is 0 or more"),
        ({"drain_seconds": NAN}, "drain_seconds is 0 or more"),
    ],
)
def test_a_worker_names_the_limit_that_was_passed(given: dict[str, Any], limit: str) -> None:
    durable = Durable("sqlite://")
    with pytest.raises(BadInput, match=limit):
        Worker(durable, **given)
    durable.close()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_an_address_of_postgresql_may_be_written_as_hosts_write_it(scheme: str) -> None:
    engine = open_engine(f"{scheme}://u:p%40ss@host:5433/db?sslmode=require")
    assert engine.url.drivername == "postgresql+psycopg"
    assert (engine.url.password, engine.url.port, engine.url.database) == ("p@ss", 5433, "db")
    assert engine.url.query == {"sslmode": "require"}
    engine.dispose()


@pytest.mark.parametrize("amount", [-1, NAN, float("inf"), "a lot", True, None])
def test_a_price_is_a_number(amount: Any) -> None:
    with pytest.raises(BadInput, match="price of input"):
        Price(input=amount, output=1)


def test_prices_are_of_one_currency() -> None:
    prices = {"a": Price(1, 1), "b": Price(1, 1, currency="EUR")}
    with pytest.raises(BadInput, match="EUR and USD"):
        Durable("sqlite://", prices=prices)


def test_a_cost_is_exact() -> None:
    usage = Usage(by_route={"a": (1, 0), "b": (3, 4)})
    tenth = {"a": Price(input=0.1, output=0)}
    assert cost_of(usage, tenth) == Cost(Decimal("0.0000001"), "USD", unpriced_tokens=7)
    assert str(cost_of(usage, tenth)) == "0.0000001 USD"
    assert str(Cost(Decimal("100"), "EUR")) == "100 EUR"
    assert str(Cost(Decimal("0E-7"), "EUR")) == "0 EUR"
    assert cost_of(usage, {}) is None
