"""The source's story: classify → list invoices → refund (asks) → draft, in both modes."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from shop import Shop, succeeded, waits

from langgraph_durable import RunContext, Status, ToolHub, Worker
from langgraph_durable.errors import LeaseLost
from langgraph_durable.runs import Done, Step

pytestmark = [
    pytest.mark.promise("S-20"),
    pytest.mark.promise("S-21"),
    pytest.mark.promise("S-48"),
]


class Ticket(TypedDict, total=False):
    text: str
    category: str
    invoices: list[dict[str, Any]]
    refund: Any
    reply: str


class Killed(BaseException):
    """The worker dies here."""


class Desk:
    """Models and tools, and what was asked of them."""

    def __init__(self) -> None:
        self.models: list[str] = []
        self.tools: list[str] = []
        self.keys: set[str] = set()
        self.dies_after = ""
        self.hub = ToolHub()

        @self.hub.tool(effect="read", server="billing")
        def list_invoices() -> list[dict[str, Any]]:
            return self.done("list", [{"id": "i1", "cents": 100}, {"id": "i2", "cents": 4200}])

        @self.hub.tool(effect="idempotent", server="billing", asks=True)
        def create_refund(invoice: str, cents: int, idempotency_key: str) -> dict[str, Any]:
            self.keys.add(idempotency_key)
            return self.done("refund", {"refunded": cents})

    def model(self, messages: Any, route: str) -> str:
        self.models.append(route)
        return "refund" if "classify" in messages[0].content else f"{route}: done"

    def done(self, tool: str, result: Any) -> Any:
        self.tools.append(tool)
        if self.dies_after == tool:
            self.dies_after = ""
            raise Killed(tool)
        return result


def graph() -> StateGraph[Ticket]:
    async def classify(state: Ticket, runtime: Runtime[RunContext]) -> Ticket:
        asked = [("system", "classify"), ("user", state["text"])]
        return {"category": (await runtime.context.llm("classify", asked, route="fast")).text}

    async def invoices(_state: Ticket, runtime: Runtime[RunContext]) -> Ticket:
        return {"invoices": await runtime.context.tool("list", "billing.list_invoices", {})}

    async def refund(state: Ticket, runtime: Runtime[RunContext]) -> Ticket:
        last = state["invoices"][-1]
        arguments = {"invoice": last["id"], "cents": last["cents"]}
        call = await runtime.context.tool(f"refund:{last['id']}", "create_refund", arguments)
        return {"refund": call}

    async def draft(_state: Ticket, runtime: Runtime[RunContext]) -> Ticket:
        reply = await runtime.context.llm("draft", [("system", "draft")], route="smart")
        return {"reply": reply.text}

    built = StateGraph(Ticket, context_schema=RunContext)
    for node in (classify, invoices, refund, draft):
        built.add_node(node)
    built.add_edge(START, "classify")
    built.add_edge("classify", "invoices")
    built.add_conditional_edges(
        "invoices", lambda s: "refund" if s["category"] == "refund" else "draft"
    )
    built.add_edge("refund", "draft")
    built.add_edge("draft", END)
    return built


@pytest.fixture
def desk() -> Desk:
    return Desk()


def open_shop(shop: Shop, mode: str, desk: Desk) -> Shop:
    models = {"fast": desk.model, "smart": desk.model}
    shop.deploy(graph(), mode, tools=desk.hub, models=models)
    return shop


@pytest.mark.promise("S-36")
@pytest.mark.promise("S-37")
def test_a_refund_waits_and_resumes_without_redoing_anything(
    any_shop: Shop, mode: str, desk: Desk
) -> None:
    shop = open_shop(any_shop, mode, desk)
    waits(shop.begin({"text": "charged twice"}))
    assert (desk.models, desk.tools) == (["fast"], ["list"])
    assert shop.asked[0].payload == {"invoice": "i2", "cents": 4200}
    output = succeeded(shop.approve())
    assert output["refund"] == {"refunded": 4200}
    assert output["reply"] == "smart: done"
    assert (desk.models, desk.tools) == (["fast", "smart"], ["list", "refund"])
    assert desk.keys == {f"{shop.run_id}:refund:i2"}
    usage = shop.run.usage
    assert (usage.model_calls, usage.tool_calls) == (2, 2)


@pytest.mark.promise("S-40")
def test_a_crash_after_list_and_before_its_record_lists_again(
    any_shop: Shop, mode: str, desk: Desk
) -> None:
    shop = open_shop(any_shop, mode, desk)
    shop.submit({"text": "charged twice"})
    desk.dies_after = "list"
    with pytest.raises(Killed):
        Worker(shop.durable, lease_seconds=20).run_once()
    shop.expire_lease()
    shop.restart()
    waits(shop.work())
    succeeded(shop.approve())
    assert desk.tools == ["list", "list", "refund"]
    assert desk.models == ["fast", "smart"]


@pytest.mark.promise("S-41")
def test_a_crash_after_the_refund_makes_one_refund(any_shop: Shop, mode: str, desk: Desk) -> None:
    shop = open_shop(any_shop, mode, desk)
    waits(shop.begin({"text": "charged twice"}))
    from langgraph_durable import Decision

    shop.decide(Decision.approve("mei"))
    desk.dies_after = "refund"
    with pytest.raises(Killed):
        Worker(shop.durable, lease_seconds=20).run_once()
    shop.expire_lease()
    shop.restart()
    succeeded(shop.work())
    assert desk.tools == ["list", "refund", "refund"]
    assert len(desk.keys) == 1  # billing answers the repeat with the first result


@pytest.mark.promise("S-05")
def test_an_old_worker_can_do_nothing(any_shop: Shop, mode: str, desk: Desk) -> None:
    shop = open_shop(any_shop, mode, desk)
    shop.submit({"text": "charged twice"})
    from langgraph_durable.store import Served

    store = shop.durable.store
    claim = store.claim("old", 20, Served([("agent", "1")]))
    assert claim is not None
    shop.expire_lease()
    waits(shop.work())
    before = (shop.run.status, shop.run.epoch, dict(shop.journal))
    late = Step(key="classify", kind="llm", value='"late"')
    with pytest.raises(LeaseLost):
        store.put_step(claim.lease, late)
    with pytest.raises(LeaseLost):
        store.settle(claim.lease, Done('"late"'))
    assert store.heartbeat([claim.lease], 20) == {}
    assert (shop.run.status, shop.run.epoch, dict(shop.journal)) == before
    assert succeeded(shop.approve())["refund"] == {"refunded": 4200}


@pytest.mark.promise("S-34")
def test_a_refused_refund_is_told_and_final(shop: Shop, mode: str, desk: Desk) -> None:
    open_shop(shop, mode, desk)
    waits(shop.begin({"text": "charged twice"}))
    run = shop.reject("no")
    assert str(succeeded(run)["refund"]) == "The call was refused by mei: no"
    assert desk.tools == ["list"]
    assert run.status is Status.SUCCEEDED
