"""API keys: made, checked, rotated, revoked; on both databases."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from langgraph_durable import Durable
from langgraph_durable.errors import BadInput, BadKey, Conflict, MissingPepper, NotFound

PEPPER = "a pepper of at least sixteen characters"


class TurnedClock:
    def __init__(self) -> None:
        self.at = datetime(2026, 5, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return 0.0

    def turn(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def durable(database_url: str, clock: TurnedClock) -> Iterator[Durable]:
    made = Durable(database_url, pepper=PEPPER, clock=clock)
    yield made
    made.store.engine.dispose()


def make(durable: Durable, name: str = "shop", **given: object) -> tuple[str, str]:
    issued = durable.keys.create(**{"tenant": "t_a", "roles": ["agent"], "name": name, **given})  # type: ignore[arg-type]
    return issued.key.id, issued.secret


def test_a_key_is_known_by_its_secret(durable: Durable) -> None:
    _, secret = make(durable, roles=["supervisor", "agent"], scopes=["agent:support"])

    key = durable.keys.verify(secret)

    assert (key.tenant, key.name, key.is_live) == ("t_a", "shop", True)
    assert key.roles == {"agent", "supervisor"}
    assert key.agents == {"support"}


def test_the_secret_is_nowhere_in_the_database(durable: Durable) -> None:
    key_id, secret = make(durable)
    with durable.store.engine.connect() as connection:
        row = connection.execute(sa.text("SELECT * FROM api_keys")).one()

    hidden = secret.removeprefix(f"lgd_{key_id}_")
    assert hidden not in repr(row)
    assert hidden not in repr(durable.keys.list())

    issued = durable.keys.create(tenant="t", roles=["agent"], name="r")
    assert issued.secret not in repr(issued)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: s[:-1] + ("A" if s[-1] != "A" else "B"),
        lambda s: s.replace("lgd_", "lgd-"),
        lambda s: "lgd_" + "0" * 16 + s[20:],
        lambda _: "",
        lambda s: s + "\0",
        lambda s: s * 10_000,
        lambda _: "lgd_' OR 1=1 --_" + "x" * 43,
        lambda _: "lgd_ｅ" + "é" * 40,
    ],
)
def test_another_secret_is_no_key(durable: Durable, spoil: object) -> None:
    _, secret = make(durable)

    with pytest.raises(BadKey):
        durable.keys.verify(spoil(secret))  # type: ignore[operator]


def test_a_key_of_another_pepper_is_no_key(durable: Durable) -> None:
    _, secret = make(durable)
    other = Durable(durable.url, pepper="another pepper, also long enough")

    with pytest.raises(BadKey):
        other.keys.verify(secret)
    other.store.engine.dispose()


def test_a_revoked_key_ends_at_once_and_only_for_its_tenant(durable: Durable) -> None:
    key_id, secret = make(durable)

    with pytest.raises(NotFound):
        durable.keys.revoke(key_id, tenant="t_b")
    durable.keys.verify(secret)
    first = durable.keys.revoke(key_id, tenant="t_a", by="olga")
    again = durable.keys.revoke(key_id, tenant="t_a", by="another")

    assert first == again
    with pytest.raises(BadKey):
        durable.keys.verify(secret)


def test_a_key_expires(durable: Durable, clock: TurnedClock) -> None:
    _, secret = make(durable, expires_in_seconds=60)

    clock.turn(59)
    durable.keys.verify(secret)
    clock.turn(2)

    with pytest.raises(BadKey):
        durable.keys.verify(secret)


def test_a_rotated_key_works_on_for_its_grace(durable: Durable, clock: TurnedClock) -> None:
    key_id, old = make(durable, scopes=["agent:support"], expires_in_seconds=1000)
    clock.turn(100)

    issued = durable.keys.rotate(key_id, tenant="t_a", grace_seconds=30)

    assert issued.key.name == "shop"
    assert issued.key.scopes == {"agent:support"}
    assert issued.key.expires_at == clock.at + timedelta(seconds=1000)
    durable.keys.verify(old)
    clock.turn(31)
    durable.keys.verify(issued.secret)
    with pytest.raises(BadKey):
        durable.keys.verify(old)
    with pytest.raises(BadInput, match="expired"):
        durable.keys.rotate(key_id)


def test_rotating_never_lengthens_a_life(durable: Durable, clock: TurnedClock) -> None:
    key_id, old = make(durable, expires_in_seconds=10)

    durable.keys.rotate(key_id, grace_seconds=1000)
    clock.turn(11)

    with pytest.raises(BadKey):
        durable.keys.verify(old)


def test_two_live_keys_of_a_tenant_dont_share_a_name(durable: Durable) -> None:
    key_id, _ = make(durable)

    with pytest.raises(Conflict, match="shop"):
        make(durable)
    make(durable, tenant="t_b")
    durable.keys.revoke(key_id)
    make(durable)


def test_of_many_who_make_a_key_of_one_name_at_once_one_wins(durable: Durable) -> None:
    made: list[str] = []
    start = threading.Barrier(6)

    def race() -> None:
        start.wait()
        with contextlib.suppress(Conflict):
            made.append(make(durable, name="mei")[0])

    threads = [threading.Thread(target=race) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"roles": []},
        {"roles": ["Agent"]},
        {"roles": "agent"},
        {"roles": ["a" * 65]},
        {"scopes": ["support"]},
        {"scopes": ["agent:"]},
        {"scopes": ["agent:a\0b"]},
        {"name": ""},
        {"name": "a\nb"},
        {"tenant": "x" * 201},
        {"expires_in_seconds": 0},
        {"expires_in_seconds": float("nan")},
    ],
)
def test_a_malformed_key_is_not_made(durable: Durable, given: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        make(durable, **given)
    assert durable.keys.list() == []


def test_without_a_pepper_keys_say_what_is_missing(
    durable: Durable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LANGGRAPH_DURABLE_PEPPER", raising=False)
    bare = Durable(durable.url)

    with pytest.raises(MissingPepper, match="LANGGRAPH_DURABLE_PEPPER"):
        make(bare)
    monkeypatch.setenv("LANGGRAPH_DURABLE_PEPPER", "short")
    with pytest.raises(BadInput, match="at least 16"):
        make(bare)
    monkeypatch.setenv("LANGGRAPH_DURABLE_PEPPER", PEPPER)
    _, secret = make(bare)
    durable.keys.verify(secret)
    bare.store.engine.dispose()


def command(
    durable: Durable, *arguments: str, pepper: str = PEPPER
) -> subprocess.CompletedProcess[str]:
    """Run the command line as people do: in a process of its own."""
    environment = {**os.environ, "LANGGRAPH_DURABLE_DB": durable.url, "COLUMNS": "200"}
    environment["LANGGRAPH_DURABLE_PEPPER"] = pepper
    return subprocess.run(
        [sys.executable, "-m", "langgraph_durable.cli", "keys", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_keys_are_made_listed_and_revoked_at_the_command_line(durable: Durable) -> None:
    made = command(durable, "create", "--tenant", "t_a", "--name", "mei", "--role", "supervisor")
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    key = durable.keys.verify(secret)
    assert (key.name, key.roles) == ("mei", {"supervisor"})

    listed = command(durable, "list", "--tenant", "t_a", "--json")
    assert [one["id"] for one in json.loads(listed.stdout)] == [key.id]
    assert secret[-43:] not in listed.stdout
    assert "mei" in command(durable, "list").stdout

    rotated = command(durable, "rotate", key.id, "--grace-hours", "1")
    fresh = durable.keys.verify(rotated.stdout.strip())
    assert (fresh.name, fresh.roles, fresh.id == key.id) == ("mei", {"supervisor"}, False)
    assert "1 hours more" in rotated.stderr
    assert durable.keys.verify(secret).id == key.id  # in its grace

    assert command(durable, "revoke", key.id).returncode == 0
    with pytest.raises(BadKey):
        durable.keys.verify(secret)
    assert command(durable, "revoke", "none").returncode == 3


def test_the_command_line_says_that_a_pepper_is_missing(durable: Durable) -> None:
    made = command(durable, "create", "--tenant", "t", "--name", "n", "--role", "agent", pepper="")

    assert made.returncode == 1
    assert "LANGGRAPH_DURABLE_PEPPER" in made.stderr
    assert "Traceback" not in made.stderr
