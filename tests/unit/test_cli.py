"""The command line: what it prints, what it exits with, and that nobody ever sees a traceback."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from langgraph_durable import (
    Compensation,
    Decision,
    Durable,
    RunContext,
    ToolHub,
    Worker,
    __version__,
    cli,
)
from langgraph_durable.errors import BadInput


class Result:
    """What one command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Run the command line as the console script does, with its own main()."""
    monkeypatch.delenv("LANGGRAPH_DURABLE_DB", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "200")

    def command(*args: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["langgraph-durable", *args])
        monkeypatch.setattr(cli.printing, "out", Console(width=200))
        monkeypatch.setattr(cli.printing, "err", Console(stderr=True, width=200))
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return Result(code, said.out, said.err)

    return command


@pytest.fixture
def durable(sqlite_url: str) -> Any:
    """An app whose one agent asks before it pays."""
    hub = ToolHub()

    @hub.tool(effect="idempotent", asks=True)
    def pay(amount: int, idempotency_key: str) -> str:
        return f"paid {amount}"

    made = Durable(sqlite_url, tools=hub)

    @made.agent("refund")
    async def refund(ctx: RunContext, inp: Any) -> Any:
        return str(await ctx.tool("refund", "pay", {"amount": 42}))

    @made.agent("plain")
    async def plain(ctx: RunContext, inp: Any) -> Any:
        if inp == "break":
            raise ValueError("broken")
        await ctx.now("now")
        return inp

    yield made
    made.store.engine.dispose()


@pytest.fixture
def parked(durable: Durable) -> str:
    """A run that waits for an approval."""
    run_id = durable.submit("refund", {}, tenant="t_acme")
    Worker(durable).run_once()
    return run_id


def _question(durable: Durable) -> str:
    return durable.questions()[0].id


# --- runs ------------------------------------------------------------------------------


def test_runs_list(run: Any, durable: Durable, parked: str, sqlite_url: str) -> None:
    done = durable.submit("plain", "hello [bold]x[/bold]")
    Worker(durable).run_once()
    listed = run("runs", "list", "--db", sqlite_url)
    assert listed.code == 0
    assert parked in listed.out
    assert done in listed.out
    only = run("runs", "list", "--db", sqlite_url, "--status", "waiting_human")
    assert parked in only.out
    assert done not in only.out
    assert done not in run("runs", "list", "--db", sqlite_url, "--tenant", "t_acme").out


def test_runs_list_json(run: Any, durable: Durable, parked: str, sqlite_url: str) -> None:
    found = json.loads(run("runs", "list", "--db", sqlite_url, "--json").out)
    assert [r["id"] for r in found] == [parked]
    assert found[0]["status"] == "waiting_human"
    assert found[0]["questions"][0]["payload"] == {"amount": 42}


def test_runs_list_of_nothing(run: Any, durable: Durable, sqlite_url: str) -> None:
    assert run("runs", "list", "--db", sqlite_url).code == 0
    assert json.loads(run("runs", "list", "--db", sqlite_url, "--json").out) == []


def test_runs_show(run: Any, durable: Durable, parked: str, sqlite_url: str) -> None:
    shown = run("runs", "show", parked, "--db", sqlite_url)
    assert shown.code == 0
    assert "waiting_human" in shown.out
    assert "question_asked" in shown.out
    assert _question(durable) in shown.out


@pytest.mark.promise("S-45")
def test_runs_show_what_was_undone(run: Any, durable: Durable, sqlite_url: str) -> None:
    @durable.services.tools.tool(effect="idempotent")
    def put(what: str, idempotency_key: str) -> str:
        return what

    @durable.agent("undone")
    async def undone(ctx: RunContext, given: Any) -> None:
        await ctx.tool("a", "put", {"what": "x"}, compensate=Compensation("put", {"what": ""}))
        raise BadInput("no")

    run_id = durable.submit("undone", {})
    Worker(durable).run_until_idle()
    shown = run("runs", "show", run_id, "--db", sqlite_url)
    assert "status failed" in shown.out
    assert "unwound, to end as failed" in shown.out
    assert "recorded; compensated by compensate:a" in shown.out
    ended = run("runs", "retry", run_id, "--db", sqlite_url)
    assert (ended.code, "Submit it anew" in ended.err) == (4, True)


def test_runs_show_json(run: Any, durable: Durable, parked: str, sqlite_url: str) -> None:
    durable.decide(_question(durable), Decision.approve("mei"))
    Worker(durable).run_once()
    shown = json.loads(run("runs", "show", parked, "--json", "--db", sqlite_url).out)
    assert shown["status"] == "succeeded"
    assert shown["output"] == "paid 42"
    assert [(s["key"], s["state"], s["value"]) for s in shown["steps"]] == [
        ("refund", "recorded", "paid 42")
    ]
    assert shown["events"][0]["type"] == "run_submitted"


def test_text_from_users_is_not_markup(run: Any, durable: Durable, sqlite_url: str) -> None:
    """Rich reads [brackets] and :x:; what has them must neither vanish nor become a picture."""
    run_id = durable.submit("plain", "[/red] [bold]loud", tenant=":x:")
    Worker(durable).run_once()
    shown = run("runs", "show", run_id, "--db", sqlite_url)
    assert shown.code == 0
    assert "[/red] [bold]loud" in shown.out
    assert "tenant :x:" in shown.out  # a sentence
    assert " :x: " in run("runs", "list", "--db", sqlite_url).out  # a table


def test_an_unknown_run(run: Any, durable: Durable, sqlite_url: str) -> None:
    for command in (["show"], ["cancel"], ["retry"]):
        ended = run("runs", *command, "nope", "--db", sqlite_url)
        assert ended.code == 3
        assert ended.err.strip() == "error: run 'nope' not found"


def test_another_tenants_run_is_not_found(run: Any, parked: str, sqlite_url: str) -> None:
    for command in (["show"], ["cancel"], ["retry"]):
        assert run("runs", *command, parked, "--db", sqlite_url, "--tenant", "evil").code == 3


def test_send_and_signals(run: Any, durable: Durable, parked: str, sqlite_url: str) -> None:
    send = ("runs", "send", parked, "paid", '{"cents": 42}', "--id", "evt_1", "--db", sqlite_url)
    first = run(*send, "--by", "bank")
    assert first.code == 0
    assert "signal evt_1: paid" in first.out
    assert run(*send).code == 0  # the same again
    other = run("runs", "send", parked, "paid", "43", "--id", "evt_1", "--db", sqlite_url)
    assert (other.code, "evt_1" in other.err) == (4, True)
    assert "JSON" in run("runs", "send", parked, "paid", "{", "--db", sqlite_url).err
    (listed,) = json.loads(run("runs", "signals", parked, "--json", "--db", sqlite_url).out)
    assert (listed["payload"], listed["sent_by"]) == ({"cents": 42}, "bank")
    assert "evt_1" in run("runs", "signals", parked, "--db", sqlite_url).out


def test_cancel_and_retry(run: Any, durable: Durable, parked: str, sqlite_url: str) -> None:
    cancelled = run("runs", "cancel", parked, "--by", "mei", "--db", sqlite_url)
    assert cancelled.code == 0
    assert "cancelled" in cancelled.out
    again = run("runs", "retry", parked, "--db", sqlite_url)
    assert again.code == 4
    assert "cancelled" in again.err
    failed = durable.submit("plain", "break", max_attempts=1)
    Worker(durable).run_once()
    assert run("runs", "retry", failed, "--db", sqlite_url).code == 0
    assert durable.get(failed).status == "queued"


# --- questions -------------------------------------------------------------------------


def test_questions_list(run: Any, durable: Durable, parked: str, sqlite_url: str) -> None:
    listed = run("questions", "list", "--db", sqlite_url)
    assert listed.code == 0
    assert _question(durable) in listed.out
    assert "42" in listed.out
    found = json.loads(run("questions", "list", "--json", "--db", sqlite_url).out)
    assert [q["run_id"] for q in found] == [parked]
    shown = json.loads(run("questions", "show", _question(durable), "--db", sqlite_url).out)
    assert shown["tool"] == "local.pay"


def test_no_questions(run: Any, durable: Durable, sqlite_url: str) -> None:
    assert "no open questions" in run("questions", "list", "--db", sqlite_url).out
    assert json.loads(run("questions", "list", "--json", "--db", sqlite_url).out) == []


@pytest.mark.promise("S-33")
def test_approve_twice(run: Any, durable: Durable, parked: str, sqlite_url: str) -> None:
    question = _question(durable)
    first = run("approve", question, "--by", "mei", "--db", sqlite_url)
    assert first.code == 0
    assert "nothing changed" not in first.out
    second = run("approve", question, "--by", "li", "--db", sqlite_url)
    assert second.code == 0
    assert "approve by mei" in second.out
    assert "nothing changed" in second.out
    Worker(durable).run_once()
    assert durable.get(parked).output == "paid 42"


def test_reject_after_approve(run: Any, durable: Durable, parked: str, sqlite_url: str) -> None:
    question = _question(durable)
    run("approve", question, "--by", "mei", "--db", sqlite_url)
    late = run("reject", question, "--by", "li", "--reason", "no", "--db", sqlite_url)
    assert late.code == 4
    assert "already decided otherwise: approve by mei" in late.err


def test_edit_and_respond(run: Any, durable: Durable, parked: str, sqlite_url: str) -> None:
    question = _question(durable)
    for wrong in ("{not json", "[1]", '{"amount": "many"}'):
        ended = run("edit", question, wrong, "--by", "mei", "--db", sqlite_url)
        assert ended.code == 1
        assert ended.err.startswith("error: ")
    ended = run("respond", question, '"x"', "--by", "mei", "--db", sqlite_url)
    assert ended.code == 1
    assert durable.questions()[0].id == question  # still open
    assert run("edit", question, '{"amount": 7}', "--by", "mei", "--db", sqlite_url).code == 0
    Worker(durable).run_once()
    assert durable.get(parked).output == "paid 7"


def test_an_unknown_question(run: Any, durable: Durable, sqlite_url: str) -> None:
    assert run("approve", "nope", "--by", "mei", "--db", sqlite_url).code == 3
    assert run("questions", "show", "nope", "--db", sqlite_url).code == 3


def test_a_decision_says_who(run: Any, durable: Durable, parked: str, sqlite_url: str) -> None:
    ended = run("approve", _question(durable), "--db", sqlite_url)
    assert ended.code == 2
    assert "--by" in ended.err


# --- where the app and the database are ------------------------------------------------


@pytest.mark.parametrize(
    "app",
    ["nonsense", "no.such.module:durable", "json:dumps", "json:nothing", ":durable", "json:", "."],
)
def test_a_bad_app(run: Any, app: str) -> None:
    for command in (["worker"], ["agents"], ["runs", "list"]):
        ended = run(*command, "--app", app)
        assert ended.code == 1
        assert ended.err.startswith("error: --app")


def test_an_app_that_fails_to_import(run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "broken_app.py").write_text("import os\nraise RuntimeError('no settings')\n")
    (tmp_path / "typo_app.py").write_text("def (:\n")
    monkeypatch.chdir(tmp_path)
    for module, said in (("broken_app", "no settings"), ("typo_app", "invalid syntax")):
        ended = run("agents", "--app", f"{module}:durable")
        assert ended.code == 1
        assert said in ended.err


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "mysql://user@host/db",
        "sqlite:////no/such/folder/x.db",
        "postgresql+psycopg://nobody@127.0.0.1:1/nothing",
        "postgresql://[bad",
    ],
)
def test_a_bad_database(run: Any, url: str) -> None:
    ended = run("runs", "list", "--db", url)
    assert ended.code == 5
    assert ended.err.startswith("error: ")
    assert len(ended.err.strip()) > len("error: ")


def test_a_typing_error_makes_no_database(run: Any, tmp_path: Path) -> None:
    ended = run("runs", "list", "--db", f"sqlite:///{tmp_path}/suport.db")
    assert ended.code == 5
    assert not list(tmp_path.glob("*.db"))


def test_no_database_is_named(run: Any) -> None:
    ended = run("runs", "list")
    assert ended.code == 1
    assert "--db" in ended.err


def test_the_database_may_come_from_the_environment(
    run: Any, durable: Durable, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGGRAPH_DURABLE_DB", sqlite_url)
    assert run("runs", "list").code == 0


def test_the_password_is_not_shown(run: Any) -> None:
    ended = run("runs", "list", "--db", "postgresql+psycopg://u:hunter2@127.0.0.1:1/nothing")
    assert ended.code == 5
    assert "hunter2" not in ended.err + ended.out


def test_upgrade(run: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    assert run("db", "upgrade", "--db", url).code == 0
    assert run("db", "upgrade", "--db", url).code == 0
    assert run("runs", "list", "--db", url).code == 0


# --- agents and the worker -------------------------------------------------------------


@pytest.mark.promise("S-24")
def test_agents(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adr = tmp_path / "adr.md"
    adr.write_text("---\nagent: good\nmode: steps\n---\n# ADR\n")
    app = tmp_path / "shown_app.py"
    app.write_text(
        "from langgraph_durable import Durable\n"
        "durable = Durable('sqlite://')\n"
        "@durable.agent('good', adr='adr.md')\n"
        "async def good(ctx, inp): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    listed = run("agents", "--app", "shown_app:durable")
    assert listed.code == 0
    assert "good" in listed.out
    found = json.loads(run("agents", "--app", "shown_app:durable", "--json").out)
    assert found == [
        {"name": "good", "version": "1", "mode": "steps", "adr": "adr.md", "problem": None}
    ]
    adr.write_text("---\nagent: good\nmode: graph\n---\n")
    ended = run("agents", "--app", "shown_app:durable")
    assert ended.code == 1
    assert "graph" in ended.out


@pytest.mark.parametrize(
    "option", [["--lease-seconds", "0"], ["--concurrency", "0"], ["--log-level", "loud"]]
)
def test_a_worker_with_bad_options(run: Any, tmp_path: Path, monkeypatch: Any, option: Any) -> None:
    (tmp_path / "option_app.py").write_text(
        "from langgraph_durable import Durable\ndurable = Durable('sqlite://')\n"
    )
    monkeypatch.chdir(tmp_path)
    ended = run("worker", "--app", "option_app:durable", *option)
    assert ended.code in (1, 2)
    assert ended.err.strip()


def test_help_of_every_command(run: Any) -> None:
    for command in ([], ["worker"], ["runs"], ["runs", "show"], ["questions"], ["approve"], ["db"]):
        ended = run(*command, "--help")
        assert ended.code == 0
        assert "Usage" in ended.out


# --- operators -------------------------------------------------------------------------


@pytest.mark.promise("S-72")
def test_stats(run: Any, durable: Durable, parked: str, sqlite_url: str) -> None:
    durable.decide(_question(durable), Decision.approve("mei"))
    Worker(durable).run_once()
    found = json.loads(run("stats", "--db", sqlite_url, "--days", "1", "--json").out)
    assert (found["runs"], found["steps"], found["questions"], found["stuck"]) == (1, 1, 1, 0)
    assert found["by_status"] == {"succeeded": 1}
    assert found["human_wait_seconds"] > 0
    shown = run("stats", "--db", sqlite_url)
    assert shown.code == 0
    assert "waited for people" in shown.out
    assert run("stats", "--db", sqlite_url, "--days", "0").code == 2


def test_doctor_tells_of_a_version_that_nobody_has(
    run: Any, durable: Durable, sqlite_url: str
) -> None:
    assert run("doctor", "--db", sqlite_url).code == 0
    run_id = durable.submit("plain", 1)
    durable.store.announce("w", [("plain", "2")])
    (found,) = json.loads(run("doctor", "--db", sqlite_url, "--json").out)
    assert (found["kind"], found["run_id"]) == ("no worker", run_id)
    durable.store.announce("w", [("plain", "1")])
    assert json.loads(run("doctor", "--db", sqlite_url, "--json").out) == []
    durable.store.depart("w")
    shown = run("doctor", "--db", sqlite_url)
    assert shown.code == 1
    assert "version '1'" in shown.out


def test_runs_watch_follows_to_the_end(
    run: Any, durable: Durable, parked: str, sqlite_url: str
) -> None:
    waiting = run("runs", "watch", parked, "--db", sqlite_url, "--timeout-seconds", "0.1")
    assert waiting.code == 1
    assert "waiting_human still" in waiting.err
    durable.decide(_question(durable), Decision.approve("mei"))
    Worker(durable).run_once()
    watched = run("runs", "watch", parked, "--db", sqlite_url, "--json")
    assert watched.code == 0
    types = [json.loads(line)["type"] for line in watched.out.splitlines()]
    assert (types[0], types[-1]) == ("run_submitted", "run_succeeded")
    broken = durable.submit("plain", "break", max_attempts=1)
    Worker(durable).run_once()
    assert run("runs", "watch", broken, "--db", sqlite_url).code == 1
    assert run("runs", "watch", "nope", "--db", sqlite_url).code == 3


@pytest.mark.promise("S-44")
def test_dead_messages_are_listed_and_sent_again(run: Any, sqlite_url: str) -> None:
    durable = Durable(sqlite_url, outbox={"mail": print})

    @durable.agent("mails")
    async def mails(ctx: RunContext, inp: Any) -> None:
        for key in "ab":
            await ctx.emit(key, "mail", {"to": "li"})

    run_id = durable.submit("mails", tenant="t_acme")
    Worker(durable).run_once()
    on = ("--db", sqlite_url)
    assert (
        "no dead messages"
        in run("outbox", "list", "--dead", *on).out + run("outbox", "list", "--dead", *on).err
    )
    for _ in range(2):
        (message,) = durable.store.take_messages(["mail"])
        durable.store.settle_message(message, "ConnectionError: gone", None)
    durable.close()
    dead = json.loads(run("outbox", "list", "--dead", "--json", *on).out)
    assert [(m["id"], m["state"]) for m in dead] == [(f"{run_id}:{k}", "dead") for k in "ba"]
    shown = run("outbox", "list", "--run", run_id, "--tenant", "t_acme", *on)
    assert "ConnectionError: gone" in shown.out
    for wrong in ((), (f"{run_id}:a", "--all-dead")):
        assert run("outbox", "resend", *wrong, *on).code == 2
    assert run("outbox", "resend", "nope", *on).code == 3
    assert run("outbox", "resend", f"{run_id}:a", "--tenant", "evil", *on).code == 3
    assert run("outbox", "resend", f"{run_id}:a", "--by", "ada", *on).code == 0
    assert run("outbox", "resend", f"{run_id}:a", *on).code == 4
    assert "1 dead messages" in run("outbox", "resend", "--all-dead", *on).out
    assert json.loads(run("outbox", "list", "--dead", "--json", *on).out) == []


@pytest.mark.promise("S-35")
def test_rules_are_listed_and_revoked(
    run: Any, durable: Durable, parked: str, sqlite_url: str
) -> None:
    rule = {"verdict": "allow", "when": [{"argument": "amount", "at_most": 50}]}
    durable.decide(_question(durable), Decision.approve("mei", rules=[rule]))
    (made,) = json.loads(run("rules", "list", "--db", sqlite_url, "--json").out)
    assert (made["made_by"], made["tenant"], made["is_live"]) == ("mei", "t_acme", True)
    listed = run("rules", "list", "--db", sqlite_url, "--tenant", "t_acme")
    assert made["id"] in listed.out
    assert run("rules", "revoke", made["id"], "--db", sqlite_url, "--tenant", "evil").code == 3
    for _ in range(2):
        ended = run("rules", "revoke", made["id"], "--db", sqlite_url, "--by", "ada")
        assert (ended.code, "revoked by ada" in ended.out) == (0, True)
    (made,) = json.loads(run("rules", "list", "--db", sqlite_url, "--json").out)
    assert not made["is_live"]


def test_questions_are_listed_by_role_and_run(
    run: Any, durable: Durable, parked: str, sqlite_url: str
) -> None:
    def found(*filters: str) -> int:
        shown = run("questions", "list", "--db", sqlite_url, "--json", *filters)
        return len(json.loads(shown.out))

    assert found("--role", "supervisor") == 1  # who decides where no rule names anybody
    assert found("--role", "finance") == 0
    assert found("--run", parked) == 1
    assert found("--run", "other") == 0
    durable.delegate(_question(durable), by="mei", role="finance")
    assert found("--role", "finance") == 1
    assert found("--role", "supervisor") == 0


def test_the_version_is_told(run: Any) -> None:
    told = run("--version")
    assert (told.code, told.out) == (0, f"langgraph-durable {__version__}\n")


def test_a_question_is_handed_over(
    run: Any, durable: Durable, parked: str, sqlite_url: str
) -> None:
    asked = _question(durable)
    ended = run("questions", "delegate", asked, "--role", "finance", "--db", sqlite_url)
    assert (ended.code, "handed to finance" in ended.out) == (0, True)
    both = run("questions", "delegate", asked, "--role", "a", "--person", "b", "--db", sqlite_url)
    assert (both.code, "name one of them" in both.err) == (1, True)
    said = run("questions", "delegate", asked, "--person", "bo", "--db", sqlite_url, "--json")
    assert (json.loads(said.out)["person"], json.loads(said.out)["role"]) == ("bo", "finance")
    assert run("questions", "delegate", "nothing", "--role", "a", "--db", sqlite_url).code == 3


def test_what_a_run_cost_is_shown_where_prices_are_known(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "priced_app.py").write_text(
        "from langchain_core.messages import AIMessage\n"
        "from langgraph_durable import Durable\n"
        "from langgraph_durable.runs import Price\n"
        "def model(messages, route):\n"
        "    used = dict(input_tokens=1000, output_tokens=1, total_tokens=1001)\n"
        "    return AIMessage('hi', usage_metadata=used)\n"
        "prices = {'a': Price(input='2.5', output=10)}\n"
        "durable = Durable('sqlite:///priced.db', models={'a': model, 'b': model}, prices=prices)\n"
        "@durable.agent('talk')\n"
        "async def talk(ctx, inp):\n"
        "    for route in 'ab':\n"
        "        await ctx.llm(route, 'hello', route=route)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import priced_app  # type: ignore[import-not-found]

    run_id = priced_app.durable.submit("talk")
    Worker(priced_app.durable).run_once()
    shown = run("runs", "show", run_id, "--app", "priced_app:durable")
    assert "cost 0.00251 USD, and 1001 tokens of unknown price" in shown.out
    told = run("runs", "show", run_id, "--app", "priced_app:durable", "--json")
    assert json.loads(told.out)["cost"]["amount"] == "0.00251"
    assert "cost" not in run("runs", "show", run_id, "--db", "sqlite:///priced.db").out
    priced_app.durable.close()
