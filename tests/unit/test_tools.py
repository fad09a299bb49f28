"""The tool hub: what may be registered, what a call must carry, what comes back."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from langchain_core.documents import Document
from langchain_core.tools import InjectedToolArg, InjectedToolCallId, ToolException
from langchain_core.tools import tool as langchain_tool
from pydantic import BaseModel, Field

from langgraph_durable.errors import (
    BadInput,
    NotApproved,
    ToolDenied,
    ToolError,
    ToolUnreachable,
    UnknownTool,
)
from langgraph_durable.policy import Policy, Rule, ToolCall, Verdict
from langgraph_durable.runs import Effect
from langgraph_durable.tools import (
    Approval,
    CallInfo,
    ToolHub,
    ToolSpec,
    digest,
    is_name_of,
)

INFO = CallInfo("run_1", "t_acme", "support", "refund:1", fencing_token=7)


def refund(invoice: str, amount_cents: int, idempotency_key: str, fencing_token: int) -> Any:
    """Pay an invoice back."""
    return [invoice, amount_cents, idempotency_key, fencing_token]


def find(customer: str, limit: int = 10) -> str:
    """Look a customer up."""
    return f"{customer}/{limit}"


@pytest.fixture
def hub() -> ToolHub:
    made = ToolHub()
    made.add(refund, effect=Effect.IDEMPOTENT, server="billing", asks=True)
    made.add(find, effect="read")
    return made


def approved(arguments: Mapping[str, Any], **other: Any) -> CallInfo:
    known = Approval("ap_1", "t_acme", "run_1", "refund:1", "billing.refund", digest(arguments))
    return replace(INFO, approval=replace(known, **other))


PAY = {"invoice": "inv_2", "amount_cents": 4200}


# --- registering -----------------------------------------------------------------------


@pytest.mark.promise("S-70")
@pytest.mark.parametrize("effect", [None, "", "write", "readonly"])
def test_a_tool_without_a_declared_effect_is_refused(effect):
    with pytest.raises(BadInput, match=r"'read' .* 'idempotent' .* 'once'"):
        ToolHub().add(find, effect=effect)


@pytest.mark.promise("S-70")
def test_an_idempotent_tool_that_takes_no_key_is_refused_unless_declared_once():
    hub = ToolHub()
    with pytest.raises(BadInput, match="declare it 'once'"):
        hub.add(find, effect="idempotent")
    assert hub.add(find, effect="once").effect is Effect.ONCE


def test_a_key_argument_must_be_one_of_the_tools():
    with pytest.raises(BadInput, match="no parameter 'request_id'"):
        ToolHub().add(find, effect="idempotent", key_argument="request_id")


def test_two_tools_of_one_name_are_refused(hub):
    with pytest.raises(BadInput, match="already"):
        hub.add(find, effect="read")
    assert hub.add(find, effect="read", server="crm").full_name == "crm.find"


@pytest.mark.parametrize("name", ["", "a\nb", " a", "<b>", "x" * 129])
def test_names_that_are_none_are_refused(name):
    with pytest.raises(BadInput):
        ToolSpec("local", name, Effect.READ)


@pytest.mark.parametrize("server", ["", "a.b", "a b"])
def test_a_servers_name_has_no_dot(server):
    with pytest.raises(BadInput):
        ToolHub().add(find, effect="read", server=server)


def test_a_lambda_needs_a_name():
    with pytest.raises(BadInput, match="name="):
        ToolHub().add(lambda x: x, effect="read")
    assert ToolHub().add(lambda x: x, effect="read", name="same").name == "same"


class Opaque:
    pass


def positional(x: int, /) -> int:
    return x


def starred(*many: int) -> int:
    return len(many)


def unknown_type(x: Opaque) -> int:
    return 1


def unresolved(x: NoSuchType) -> int:  # type: ignore[name-defined] # noqa: F821
    return 1


@pytest.mark.parametrize("fn", [positional, starred, unknown_type, unresolved])
def test_a_signature_that_no_caller_could_fill_is_refused(fn):
    with pytest.raises(BadInput, match=fn.__name__):
        ToolHub().add(fn, effect="read")


async def test_the_decorator_leaves_the_function_as_it_is():
    hub = ToolHub()

    @hub.tool(effect="once", server="mail", name="send")
    def send_mail(to: str) -> str:
        return to

    assert send_mail("a") == "a"
    assert await hub.call("mail.send", {"to": "b"}, INFO) == "b"


# --- calling ---------------------------------------------------------------------------


@pytest.mark.promise("S-41")
@pytest.mark.promise("S-16")
async def test_the_key_and_the_token_reach_the_tool(hub):
    info = approved(PAY)
    assert await hub.call("refund", PAY, info) == ["inv_2", 4200, "run_1:refund:1", 7]
    named = replace(info, idempotency_key="other")
    assert (await hub.call("refund", PAY, named))[2] == "other"


@pytest.mark.promise("S-41")
async def test_parameters_of_other_names_can_take_the_key_and_the_token():
    hub = ToolHub()

    @hub.tool(effect="idempotent", key_argument="request_id", token_argument="epoch")
    def pay(cents: int, **headers: Any) -> Any:
        return cents, headers

    assert await hub.call("pay", {"cents": 1}, INFO) == (
        1,
        {"request_id": "run_1:refund:1", "epoch": 7},
    )


@pytest.mark.parametrize("hidden", ["idempotency_key", "fencing_token"])
async def test_neither_a_model_nor_a_caller_may_choose_the_key_or_the_token(hub, hidden):
    (shown,) = [t["function"] for t in hub.as_langchain() if t["function"]["name"] == "refund"]
    assert set(shown["parameters"]["properties"]) == {"invoice", "amount_cents"}
    assert shown["parameters"]["required"] == ["invoice", "amount_cents"]
    given = {**PAY, hidden: "mine"}
    with pytest.raises(BadInput, match=f"{hidden}.*made by the runtime"):
        await hub.call("refund", given, approved(given))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"amount_cents": 1}, "'invoice'.*required"),
        ({"invoice": "i", "amount_cents": "lots"}, "'amount_cents'.*integer"),
        ({"invoice": "i", "amount_cents": 1, "curency": "EUR"}, "'curency'"),
        ({"invoice": None, "amount_cents": 1}, "'invoice'.*string"),
        ([], "object"),
        ({1: 2}, "text names"),
    ],
)
async def test_arguments_that_dont_fit_are_refused_before_the_call(hub, arguments, says):
    with pytest.raises(BadInput, match=f"(?i)billing.refund.*{says}"):
        await hub.call("refund", arguments, INFO)
    with pytest.raises(BadInput):
        await hub.check("refund", arguments)


async def test_a_tool_without_parameters_and_one_with_defaults(hub):
    hub.add(lambda: 1, effect="read", name="ping")
    assert await hub.call("ping", {}, INFO) == 1
    assert await hub.call("find", {"customer": "c"}, INFO) == "c/10"
    assert hub.spec("find").schema["properties"]["limit"]["default"] == 10


class Line(BaseModel):
    sku: str
    count: Annotated[int, Field(gt=0, description="how many")] = 1


async def test_arguments_arrive_in_the_types_of_the_signature():
    hub = ToolHub()

    @hub.tool(effect="once")
    async def order(
        lines: list[Line], due: date, schema: str, kind: Literal["a", "b"] = "a"
    ) -> Any:
        return lines[0].count, due.year, schema, kind

    given = {"lines": [{"sku": "x"}], "due": "2030-01-02", "schema": "s"}
    assert await hub.call("order", given, INFO) == (1, 2030, "s", "a")
    with pytest.raises(BadInput, match=r"'lines\.0\.count'"):
        await hub.call("order", {**given, "lines": [{"sku": "x", "count": 0}]}, INFO)
    properties = hub.spec("order").schema["properties"]
    assert properties["kind"]["enum"] == ["a", "b"]
    assert properties["due"]["format"] == "date"


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")


async def test_a_sync_tool_runs_in_a_thread_and_sees_the_callers_context():
    hub, loop_thread = ToolHub(), threading.get_ident()
    hub.add(lambda: (threading.get_ident() != loop_thread, WHO.get()), effect="read", name="where")
    WHO.set("run_1")
    assert await hub.call("where", {}, INFO) == (True, "run_1")


class Finder:
    async def __call__(self, x: int) -> int:
        return x + 1

    def twice(self, x: int) -> int:
        return 2 * x


async def test_methods_partials_and_callable_objects_are_tools():
    hub = ToolHub()
    hub.add(Finder(), effect="read", name="plus")
    hub.add(Finder().twice, effect="read")
    hub.add(functools.partial(find, limit=3), effect="read", name="three")
    assert await hub.call("plus", {"x": 1}, INFO) == 2
    assert await hub.call("twice", {"x": 2}, INFO) == 4
    assert await hub.call("three", {"customer": "c"}, INFO) == "c/3"


async def test_a_tool_that_runs_out_of_an_iterator_does_not_hang_its_step():
    hub = ToolHub()
    hub.add(lambda: next(iter(())), effect="read", name="first")
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(hub.call("first", {}, INFO), 5)


async def test_a_failure_that_a_tool_meant_names_the_tool_and_the_step():
    hub = ToolHub()

    @hub.tool(effect="read")
    def broken() -> None:
        raise ToolError("no such invoice")

    with pytest.raises(ToolError, match="no such invoice") as caught:
        await hub.call("broken", {}, INFO)
    assert (caught.value.tool, caught.value.key) == ("local.broken", "refund:1")


# --- approval --------------------------------------------------------------------------


@pytest.mark.promise("S-31")
async def test_a_tool_that_asks_is_not_called_without_an_approval(hub):
    with pytest.raises(NotApproved, match="carries none"):
        await hub.call("refund", PAY, INFO)


@pytest.mark.promise("S-31")
@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "t_other"},
        {"run_id": "run_2"},
        {"key": "refund:2"},
        {"tool": "billing.refund_all"},
        {"digest": digest({**PAY, "amount_cents": 4201})},
    ],
)
async def test_an_approval_is_good_for_exactly_one_call(hub, other):
    with pytest.raises(NotApproved, match="ap_1 was given for another"):
        await hub.call("refund", PAY, approved(PAY, **other))
    assert await hub.call("refund", PAY, approved(PAY))


@pytest.mark.promise("S-31")
async def test_the_hub_digests_the_arguments_itself(hub):
    with pytest.raises(NotApproved, match="arguments"):
        await hub.call("refund", {**PAY, "amount_cents": 999_999}, approved(PAY))


async def test_what_policy_said_counts_more_than_the_tools_default(hub):
    rule = Rule("ask", tool="find")
    call = ToolCall("t_acme", "support", "local", "find", {"customer": "c"}, Effect.READ)
    asked = replace(INFO, verdict=Policy([rule]).judge(call))
    with pytest.raises(NotApproved):
        await hub.call("find", {"customer": "c"}, asked)
    allowed = replace(INFO, verdict=Verdict("allow"))
    assert await hub.call("refund", PAY, allowed)


async def test_no_approval_lifts_a_deny(hub):
    denied = replace(approved(PAY), verdict=Verdict("deny", reason="'no refunds'"))
    with pytest.raises(ToolDenied, match="no refunds"):
        await hub.call("refund", PAY, denied)


def test_a_digest_knows_arguments_by_content_not_by_order():
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})


# --- names -----------------------------------------------------------------------------


async def test_an_unknown_tool_is_refused_with_the_known_ones(hub):
    for name in ("nope", "billing.nope", ""):
        with pytest.raises(UnknownTool, match=r"billing\.refund, local\.find"):
            hub.spec(name)
        with pytest.raises(UnknownTool):
            await hub.call(name, {}, INFO)


def test_a_bare_name_works_while_it_is_unique(hub):
    assert hub.spec("find").full_name == "local.find"
    hub.add(find, effect="read", server="crm")
    with pytest.raises(BadInput, match=r"crm\.find, local\.find"):
        hub.spec("find")
    assert hub.full_name("crm.find") == "crm.find"


def test_models_see_names_that_the_hub_takes_back(hub):
    hub.add(find, effect="read", server="crm")
    hub.add(find, effect="read", server="crm", name="find.all")
    shown = [tool["function"] for tool in hub.as_langchain()]
    names = [function["name"] for function in shown]
    assert names == ["refund", "local__find", "crm__find", "crm__find_all"]
    assert [hub.spec(name).full_name for name in names] == [s.full_name for s in hub.specs()]
    assert shown[0]["description"] == "Pay an invoice back."
    assert len(hub.as_langchain(["refund"])) == 1
    for name, spec in zip(names, hub.specs(), strict=True):
        assert is_name_of(name, spec.full_name)
        assert is_name_of(spec.full_name, spec.full_name)
        assert not is_name_of(name, "billing.other")


# --- LangChain tools -------------------------------------------------------------------


@langchain_tool
def lookup(city: str, days: int = 1) -> dict[str, Any]:
    """Weather of a city."""
    return {"city": city, "days": days}


async def test_a_langchain_tool_keeps_the_shape_of_its_result():
    hub = ToolHub()
    spec = hub.add(lookup, effect="read")
    assert (spec.name, spec.description) == ("lookup", "Weather of a city.")
    assert await hub.call("lookup", {"city": "Bern"}, INFO) == {"city": "Bern", "days": 1}
    for wrong in ({}, {"city": "x", "dayz": 2}, {"city": "x", "days": "many"}):
        with pytest.raises(BadInput, match=r"local\.lookup"):
            await hub.call("lookup", wrong, INFO)


async def test_a_langchain_tools_hidden_arguments_are_filled():
    @langchain_tool
    async def pay(
        cents: int, idempotency_key: str, call_id: Annotated[str, InjectedToolCallId]
    ) -> str:
        """Pay."""
        return f"{cents} {idempotency_key} {call_id}"

    hub = ToolHub()
    hub.add(pay, effect="idempotent")
    assert set(hub.spec("pay").schema["properties"]) == {"cents"}
    assert await hub.call("pay", {"cents": 5}, INFO) == "5 run_1:refund:1 refund:1"
    with pytest.raises(BadInput, match="cents"):
        await hub.call("pay", {}, INFO)


async def test_content_and_artifact_come_back_as_plain_data():
    @langchain_tool(response_format="content_and_artifact")
    def search(q: str) -> Any:
        """Search."""
        return "one hit", [Document("text", metadata={"n": 1})] if q else None

    hub = ToolHub()
    hub.add(search, effect="read")
    found = await hub.call("search", {"q": "x"}, INFO)
    assert found["content"] == "one hit"
    assert found["artifact"][0]["page_content"] == "text"
    assert await hub.call("search", {"q": ""}, INFO) == "one hit"


async def test_a_tool_exception_is_a_failure_the_tool_meant():
    @langchain_tool
    def fussy(q: str) -> str:
        """Fail."""
        raise ToolException("not today")

    hub = ToolHub()
    hub.add(fussy, effect="read")
    with pytest.raises(ToolError, match="not today"):
        await hub.call("fussy", {"q": "x"}, INFO)


def test_a_tool_that_needs_what_only_toolnode_injects_is_refused():
    @langchain_tool
    def stateful(q: str, state: Annotated[dict[str, Any], InjectedToolArg]) -> str:
        """Read the state."""
        return q

    with pytest.raises(BadInput, match="'state' is injected"):
        ToolHub().add(stateful, effect="read")


async def test_a_langchain_tool_may_come_with_a_json_schema():
    from langchain_core.tools import StructuredTool

    schema = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "idempotency_key": {"type": "string"}},
        "required": ["x", "idempotency_key"],
    }
    made = StructuredTool.from_function(
        lambda x, idempotency_key: [x, idempotency_key],
        name="raw",
        description="Raw.",
        args_schema=schema,
    )
    hub = ToolHub()
    hub.add(made, effect="idempotent")
    assert await hub.call("raw", {"x": 1}, INFO) == [1, "run_1:refund:1"]
    with pytest.raises(BadInput, match="'x'"):
        await hub.call("raw", {"x": "one"}, INFO)


# --- a function of the caller's own ----------------------------------------------------


@pytest.mark.promise("S-65")
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_callers_own_function_serves_tools_beside_the_hubs(hub, is_async):
    seen: list[Any] = []

    def own(server: str, tool: str, arguments: dict[str, Any], approval_id: str | None) -> Any:
        seen.append((server, tool, arguments, approval_id))
        return "done"

    async def own_async(*given: Any) -> Any:
        return own(*given)

    specs = [
        ToolSpec("crm", "list", Effect.READ),
        ToolSpec("crm", "close", Effect.IDEMPOTENT, asks=True, key_argument="idempotency_key"),
    ]
    hub.plug(own_async if is_async else own, specs)
    assert await hub.call("crm.list", {"page": 2}, INFO) == "done"
    close = replace(
        approved({"id": 5}), approval=replace(approved({"id": 5}).approval, tool="crm.close")
    )  # type: ignore[type-var]
    assert await hub.call("close", {"id": 5}, close) == "done"
    assert seen == [
        ("crm", "list", {"page": 2}, None),
        ("crm", "close", {"id": 5, "idempotency_key": "run_1:refund:1"}, "ap_1"),
    ]
    assert await hub.call("find", {"customer": "c"}, INFO) == "c/10"


@pytest.mark.promise("S-70")
def test_a_plugged_write_without_a_key_is_refused_too(hub):
    with pytest.raises(BadInput, match="no idempotency key"):
        hub.plug(lambda *a: None, [ToolSpec("crm", "close", Effect.IDEMPOTENT)])


# --- probes ----------------------------------------------------------------------------


async def test_a_probe_tells_whether_a_call_happened(hub):
    ledger = {"run_1:refund:1": "paid"}
    hub.add(
        lambda to: to,
        effect="once",
        name="send",
        probe=lambda arguments, info: ledger.get(info.key_for_tool),
    )
    assert await hub.probe("send", {"to": "x"}, INFO) == "paid"
    assert await hub.probe("send", {"to": "x"}, replace(INFO, key="other")) is None
    with pytest.raises(BadInput, match="no probe"):
        await hub.probe("find", {}, INFO)


# --- mounted servers -------------------------------------------------------------------


class FakeServer:
    """A ToolServer that may be down, and claims effects for itself."""

    def __init__(self, name: str = "billing") -> None:
        self.name, self.is_up, self.calls = name, True, []  # type: ignore[var-annotated]
        whole = {"idempotency_key": {"type": "string"}, "invoice": {"type": "string"}}
        schema = {"type": "object", "properties": whole, "required": list(whole)}
        self.offers = [
            ToolSpec(name, "refund", Effect.ONCE, schema=schema, key_argument="idempotency_key"),
            ToolSpec(name, "list", Effect.READ, description="List.", schema={"type": "object"}),
            ToolSpec(name, "wipe", Effect.ONCE, asks=True, schema={"type": "object"}),
        ]

    async def tools(self) -> Sequence[ToolSpec]:
        if not self.is_up:
            raise ToolUnreachable("billing is down")
        return self.offers

    async def call(self, tool: str, arguments: Mapping[str, Any], call: CallInfo) -> Any:
        self.calls.append((tool, dict(arguments), call.approval_id))
        return "ok"

    async def aclose(self) -> None:
        self.is_up = False


async def test_a_declared_tool_is_known_while_its_server_is_down():
    hub, server = ToolHub(), FakeServer()
    server.is_up = False
    hub.mount(server, effects={"refund": "idempotent", "list": Effect.READ}, asks=["refund"])
    assert (hub.spec("refund").effect, hub.spec("refund").asks) == (Effect.IDEMPOTENT, True)
    assert hub.full_name("billing.anything") == "billing.anything"
    with pytest.raises(ToolUnreachable) as down:
        await hub.call("list", {}, INFO)
    assert not down.value.outcome_unknown
    with pytest.raises(ToolUnreachable):
        await hub.ready()
    server.is_up = True
    assert await hub.call("list", {}, INFO) == "ok"
    assert hub.spec("list").description == "List."


async def test_the_declaration_counts_not_what_the_server_claims():
    hub, server = ToolHub(), FakeServer()
    hub.mount(server, effects={"refund": "idempotent"})
    assert await hub.call("billing.refund", {"invoice": "i"}, INFO) == "ok"
    assert hub.spec("refund").effect is Effect.IDEMPOTENT
    assert server.calls == [("refund", {"invoice": "i", "idempotency_key": "run_1:refund:1"}, None)]


async def test_an_undeclared_tool_of_an_untrusted_server_is_refused():
    hub, server = ToolHub(), FakeServer()
    hub.mount(server, effects={"refund": "idempotent"})
    for name in ("list", "billing.wipe"):
        with pytest.raises(BadInput, match="no declared effect"):
            await hub.call(name, {}, INFO)
    assert server.calls == []
    assert [s.name for s in hub.specs()] == ["refund"]


async def test_a_trusted_server_may_say_what_its_tools_do():
    hub, server = ToolHub(), FakeServer()
    hub.mount(server, trusted=True, asks=["list"])
    assert (await hub.find("wipe")).asks
    assert (await hub.find("list")).asks
    with pytest.raises(NotApproved):
        await hub.call("wipe", {}, INFO)


async def test_a_declared_tool_that_the_server_lost_is_unknown():
    hub, server = ToolHub(), FakeServer()
    hub.mount(server, effects={"lsit": "read", "list": "read"})
    with pytest.raises(UnknownTool, match=r"billing\.list"):
        await hub.call("lsit", {}, INFO)


async def test_a_spec_at_mount_can_name_a_probe_and_the_keys_argument():
    hub, server = ToolHub(), FakeServer()
    declared = ToolSpec("-", "-", Effect.ONCE, probe=lambda a, i: "yes", key_argument="invoice")
    hub.mount(server, effects={"refund": declared})
    assert await hub.probe("refund", {}, INFO) == "yes"
    with pytest.raises(BadInput, match="'invoice' is made by the runtime"):
        await hub.call("refund", {"invoice": "mine"}, INFO)


async def test_mounting_mistakes_are_said_at_once():
    hub = ToolHub()
    with pytest.raises(BadInput, match="refund"):
        hub.mount(FakeServer(), asks=["refund"])
    hub.mount(FakeServer())
    with pytest.raises(BadInput, match="already"):
        hub.mount(FakeServer())
    with pytest.raises(BadInput, match="already"):
        hub.add(find, effect="read", server="billing")
    with pytest.raises(BadInput, match="no effect 'write'"):
        hub.mount(FakeServer("crm"), effects={"x": "write"})


async def test_a_schema_of_a_server_is_never_fetched_from_elsewhere():
    hub, server = ToolHub(), FakeServer()
    far = {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/secret.json"}}}
    server.offers = [
        ToolSpec("billing", "list", Effect.READ, schema=far),
        ToolSpec("billing", "odd", Effect.READ, schema={"type": "nonsense"}),
    ]
    hub.mount(server, trusted=True)
    for name in ("list", "odd"):
        with pytest.raises(BadInput, match="JSON Schema can't be used"):
            await hub.call(name, {"x": 1}, INFO)


async def test_closing_the_hub_closes_its_servers():
    hub, server = ToolHub(), FakeServer()
    hub.mount(server)
    await hub.aclose()
    assert not server.is_up
