"""Secrets: there on every worker that resumes a run, and nowhere in the database."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, TypedDict

import pytest
import sqlalchemy as sa
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel, SecretStr

from langgraph_durable import (
    Decision,
    Durable,
    Retry,
    RunContext,
    Status,
    ToolHub,
    Worker,
    current_run,
)
from langgraph_durable.errors import NotEncodable
from langgraph_durable.runs import Event
from langgraph_durable.secrets import EnvSecrets, MappingSecrets, Revealed, Secret, Wanted
from langgraph_durable.values import Types, encode

TOKEN = 'tok-"Zürich"\\8c1f'


def everything(url: str) -> bytes:
    """Return all that a database holds: a file's bytes, or every column of every table."""
    made = sa.make_url(url)
    engine = sa.create_engine(made, poolclass=sa.NullPool)
    found = b""
    with engine.connect() as tx:
        for table in sa.inspect(tx).get_table_names():
            for row in tx.exec_driver_sql(f'SELECT * FROM "{table}"'):
                for value in row:
                    raw = bytes(value) if isinstance(value, bytes | memoryview) else b""
                    found += raw + str(value).encode("utf-8", "replace") + b"\n"
    if made.get_backend_name() == "sqlite":
        for path in Path(str(made.database)).parent.glob(Path(str(made.database)).name + "*"):
            found += path.read_bytes()
    return found


def holds_token(data: bytes, token: str = TOKEN) -> bool:
    escaped = json.dumps(token)[1:-1]
    forms = (token, escaped, json.dumps(escaped)[1:-1], repr(token)[1:-1])
    return any(form.encode() in data for form in forms)


@pytest.fixture
def seen() -> list[str]:
    return []


def desk(url: str, token: str, seen: list[str]) -> Durable:
    """One worker's machine: the same code, its own provider."""
    hub = ToolHub()

    @hub.tool(effect="read")
    async def balance(customer: str) -> dict[str, str]:
        secret = await current_run().secret("crm_token")
        seen.append(secret.get_secret_value())
        return {"customer": customer, "echo": f"Bearer {secret.get_secret_value()}"}

    @hub.tool(effect="read")
    def refused(customer: str) -> str:
        secret = current_run().blocking.secret("crm_token")
        raise RuntimeError(f"401 for {customer} with {secret.get_secret_value()}")

    durable = Durable(
        url,
        tools=hub,
        secrets=MappingSecrets({("t_acme", "crm_token"): token, "crm_token": "of somebody else"}),
        outbox={"mail": lambda message: None},
    )

    @durable.agent("look", retry=Retry(first_seconds=0))
    async def look(ctx: RunContext, inp: Any) -> Any:
        first = await ctx.tool("before", "balance", {"customer": "c_42"})
        await ctx.emit("mail", "mail", {"quoted": first["echo"]})
        text = (await ctx.secret("crm_token")).get_secret_value()
        await ctx.ask("go on?", "the invoice is open")
        with contextlib.suppress(RuntimeError):
            await ctx.tool("failing", "refused", {"customer": "c_42"})
        second = await ctx.tool("after", "balance", {"customer": "c_42"})
        if ctx.attempt == 1:
            raise OSError(f"the network broke under {text}")
        return [first, second, text]

    return durable


def test_a_run_that_resumes_elsewhere_has_its_secret_and_the_database_never(
    database_url: str, seen: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="langgraph_durable")
    one = desk(database_url, TOKEN, seen)
    run_id = one.submit("look", tenant="t_acme")
    Worker(one).run_until_idle()
    [question] = one.get(run_id).questions
    one.decide(question.id, Decision.respond("mei", "yes"))
    one.close()

    rotated = "tok-of-december"
    two = desk(database_url, rotated, seen)
    Worker(two).run_until_idle()
    run = two.get(run_id)
    assert (run.status, seen) == (Status.SUCCEEDED, [TOKEN, rotated])
    echoed = {"customer": "c_42", "echo": "Bearer [secret crm_token]"}
    assert run.output == [echoed, echoed, "[secret crm_token]"]
    steps = {step.key: step for step in two.journal(run_id)}
    assert two.value(steps["before"]) == echoed
    assert "401 for c_42 with [secret crm_token]" in str(steps["failing"].error)
    [told] = [e for e in two.events(run_id) if e.type == "run_requeued"]
    assert told.data["error"]["message"] == "the network broke under [secret crm_token]"
    assert [m.payload for m in two.store.list_messages(run_id)] == [
        {"quoted": "Bearer [secret crm_token]"}
    ]
    data = everything(database_url)
    assert not holds_token(data)
    assert not holds_token(data, rotated)
    assert not holds_token(caplog.text.encode())
    two.close()


class State(TypedDict, total=False):
    said: str
    nested: dict[str, Any]
    end: str


def graph_desk(url: str, *, keeps: bool = False, **options: Any) -> Durable:
    async def use(_: State) -> State:
        secret = await current_run().secret("crm_token")
        if keeps:
            return {"nested": {"deep": [secret]}}
        text = secret.get_secret_value()
        return {"said": f"Bearer {text}", "nested": {"deep": [f"Bearer {text}"]}}

    async def wait(_: State) -> State:
        text = (await current_run().secret("crm_token")).get_secret_value()
        answer = interrupt({"may I use": text})
        return {"end": f"{answer} {text}"}

    builder = StateGraph(State)
    builder.add_node("use", use)
    builder.add_node("wait", wait)
    builder.add_edge(START, "use")
    builder.add_edge("use", "wait")
    builder.add_edge("wait", END)
    options = {"secrets": lambda wanted: {"crm_token": TOKEN}[wanted.name], **options}
    durable = Durable(url, **options)
    durable.graph("graph", builder.compile(), mode="graph", max_attempts=1)
    return durable


def test_no_checkpoint_of_a_graph_holds_a_secret(database_url: str) -> None:
    durable = graph_desk(database_url)
    run_id = durable.submit("graph", {})
    Worker(durable).run_until_idle()
    [question] = durable.get(run_id).questions
    assert question.payload == {"may I use": "[secret crm_token]"}
    durable.decide(question.id, Decision.respond("mei", "yes"))
    Worker(durable).run_until_idle()
    run = durable.get(run_id)
    assert run.output["end"] == "yes [secret crm_token]"
    assert run.output["nested"] == {"deep": ["Bearer [secret crm_token]"]}
    assert not holds_token(everything(database_url))
    durable.close()


def test_a_secret_in_the_state_of_a_graph_is_refused(database_url: str) -> None:
    durable = graph_desk(database_url, keeps=True)
    run_id = durable.submit("graph", {})
    Worker(durable).run_until_idle()
    run = durable.get(run_id)
    assert run.status is Status.FAILED
    assert "never stored" in (run.error or {})["message"]
    assert not holds_token(everything(database_url))
    durable.close()


DYING = """
import os, sys
from langgraph_durable import Durable, Worker
from langgraph_durable.secrets import EnvSecrets

durable = Durable(sys.argv[1], secrets=EnvSecrets("APP_"))

@durable.agent("die")
async def die(ctx, inp):
    text = (await ctx.secret("crm-token")).get_secret_value()
    await ctx.once("first", lambda: [os.getpid(), text])
    os.kill(os.getpid(), 9)

durable.submit("die")
Worker(durable, lease_seconds=0.1).run_until_idle()
"""


def test_a_killed_worker_leaves_no_secret_and_the_next_one_has_it(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "tok-12345678"
    monkeypatch.setenv("APP_CRM_TOKEN", token)
    dead = subprocess.run([sys.executable, "-c", DYING, sqlite_url], check=False)
    assert dead.returncode == -9
    assert not holds_token(everything(sqlite_url), token)

    durable = Durable(sqlite_url, secrets=EnvSecrets("APP_"))

    @durable.agent("die")
    async def die(ctx: RunContext, inp: Any) -> Any:
        first = await ctx.once("first", lambda: ["made again"])
        return [first[1], (await ctx.secret("crm-token")).get_secret_value() == token]

    [run] = durable.runs()
    while not run.status.is_final:  # the lease of the dead runs out
        Worker(durable).run_until_idle()
        run = durable.get(run.id)
    assert run.output == ["[secret crm-token]", True]
    assert not holds_token(everything(sqlite_url), token)
    durable.close()


def test_a_signal_that_brings_a_secret_back_is_recorded_with_its_marker() -> None:
    durable = Durable("sqlite://", secrets=MappingSecrets({"crm": TOKEN}))

    @durable.agent("waits")
    async def waits(ctx: RunContext, inp: Any) -> Any:
        await ctx.secret("crm")
        return await ctx.wait_for("crm", "answer")

    run_id = durable.submit("waits")
    Worker(durable).run_until_idle()
    durable.send(run_id, "answer", {"said": f"your key is {TOKEN}"})
    Worker(durable).run_until_idle()
    run = durable.get(run_id)
    assert run.output == {"said": "your key is [secret crm]"}
    assert not any(holds_token(str(step.value).encode()) for step in durable.journal(run_id))
    durable.close()


# --- refused, missing, away --------------------------------------------------------------


def one_pass(secrets: Any, agent: Any) -> tuple[Any, list[Event]]:
    durable = Durable("sqlite://", secrets=secrets)
    durable.agent("a", max_attempts=2, retry=Retry(first_seconds=0))(agent)
    run_id = durable.submit("a")
    Worker(durable).run_until_idle()
    run, events = durable.get(run_id), list(durable.events(run_id))
    durable.close()
    return run, events


@pytest.mark.parametrize("secrets", [None, MappingSecrets({}), lambda wanted: {}[wanted.name]])
def test_a_missing_secret_fails_the_run_at_once_and_is_named(secrets: Any) -> None:
    async def agent(ctx: RunContext, inp: Any) -> None:
        await ctx.once("use", lambda: ctx.blocking.secret("crm_token"), retry=Retry(attempts=3))

    run, events = one_pass(secrets, agent)
    assert run.status is Status.FAILED
    assert run.error["reason"] == "secret_missing"
    assert "no secret 'crm_token' for tenant 'default' and agent 'a'" in run.error["message"]
    assert sum(event.type == "run_claimed" for event in events) == 1


def test_a_provider_that_is_away_is_asked_again() -> None:
    asked = []

    async def provider(wanted: Wanted) -> SecretStr:
        asked.append(wanted)
        if len(asked) == 1:
            raise OSError("the vault is away")
        return SecretStr("tok-12345")

    async def agent(ctx: RunContext, inp: Any) -> int:
        assert await ctx.secret("crm") is await ctx.secret("crm")  # asked once a pass
        return len((await ctx.secret("crm")).get_secret_value())

    run, _ = one_pass(provider, agent)
    assert (run.status, run.output, len(asked)) == (Status.SUCCEEDED, 9, 2)
    assert (asked[0].name, asked[0].tenant, asked[0].agent) == ("crm", "default", "a")


class Login(BaseModel):
    password: SecretStr


@pytest.mark.parametrize("value", [Secret(TOKEN), [SecretStr(TOKEN)], Login(password=TOKEN)])  # type: ignore[arg-type]
def test_a_secret_can_not_be_journaled(value: Any) -> None:
    with pytest.raises(NotEncodable, match=r"step 'login'.*ctx\.secret\(name\)") as refused:
        encode(value, types=Types([Login]), where="step 'login'")
    assert not holds_token(str(refused.value).encode())


def test_a_secret_shows_itself_nowhere() -> None:
    secret = Secret(TOKEN)
    assert not holds_token(f"{secret} {secret!r} {secret:>30} {[secret]}".encode())
    assert copy.deepcopy({"a": secret})["a"] is secret
    for write in (pickle.dumps, json.dumps):
        with pytest.raises(TypeError):
            write(secret)
    assert not holds_token(Login(password=secret).model_dump_json().encode())


def test_the_most_specific_secret_of_a_mapping_counts() -> None:
    provider = MappingSecrets({("t", "a", "x"): "agent", ("t", "x"): "tenant", "x": "all"})
    found = [provider(Wanted("x", t, a, "run")) for t, a in (("t", "a"), ("t", "b"), ("u", "a"))]
    assert found == ["agent", "tenant", "all"]
    assert "agent" not in repr(provider)
    assert EnvSecrets("NOT_SET_")(Wanted("x", "t", "a", "run")) is None


def test_markers_keep_a_record_valid() -> None:
    secrets = Revealed()
    assert not secrets
    secrets.add("pin", Secret("12345678"))
    secrets.add("short", Secret("abc"))  # too short to tell from other text
    hidden = secrets.hide_json('{"n":12345678,"t":"a 12345678 b","abc":[]}')
    assert json.loads(hidden) == {"n": 12345678, "t": "a [secret pin] b", "abc": []}
    untouched = '{"nothing": 1}'
    assert secrets.hide_json(untouched) is untouched
