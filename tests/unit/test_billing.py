"""The billing system: what its file promises, and that the promise holds over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from supportpilot.billing import seed
from supportpilot.billing.client import BillingClient, BillingError
from supportpilot.billing.records import Receipt, RefundOrder, Refusal
from supportpilot.billing.store import PAGE_LENGTH, BillingStore

ORDER = RefundOrder("inv_42_03", 4_200, "r1:refund", 1)


@pytest.fixture
def store(tmp_path: Path) -> BillingStore:
    made = BillingStore(tmp_path / "billing.db")
    made.create()
    return made


def outcomes(store: BillingStore) -> list[tuple[int | None, str]]:
    return [(call.attempt, call.outcome) for call in store.calls()]


# --- the file ---------------------------------------------------------------------------


def test_ten_tenants_begin_with_the_same_invoices_every_time(store: BillingStore) -> None:
    assert len({account.tenant for account in seed.ACCOUNTS}) == 10
    assert list(seed.invoices()) == list(seed.invoices())
    store.create()  # again, on the same file
    yearly = [i for i in store.list_invoices("c_42").invoices if i.description == "Annual plan"]
    assert [(i.id, i.amount_cents) for i in yearly] == [("inv_42_02", 4_200), ("inv_42_03", 4_200)]


def test_invoices_come_in_pages(store: BillingStore) -> None:
    first, second = store.list_invoices("c_77", 1), store.list_invoices("c_77", 2)
    assert len(first.invoices) == PAGE_LENGTH
    assert (first.has_more, second.has_more) == (True, False)
    issued = [i.issued_on for i in first.invoices + second.invoices]
    assert issued == sorted(issued)
    assert len(issued) == 9


def test_an_unknown_customer_has_no_invoices(store: BillingStore) -> None:
    page = store.list_invoices("c_nobody\ud83d")
    assert (page.invoices, page.has_more) == ([], False)


def test_a_tenant_sees_and_refunds_only_its_own_customers(store: BillingStore) -> None:
    assert store.list_invoices("c_42", tenant="t_acme").invoices
    assert not store.list_invoices("c_42", tenant="t_globex").invoices
    with pytest.raises(Refusal, match="there is no invoice 'inv_42_03'"):
        store.refund(replace(ORDER, tenant="t_globex"))
    assert store.refunds() == []


@pytest.mark.promise("S-41")
def test_a_repeat_under_the_same_key_gets_the_first_receipt_and_pays_nothing(
    store: BillingStore,
) -> None:
    first = store.refund(ORDER)
    assert store.refund(replace(ORDER, fencing_token=2)) == first
    assert [(r.amount_cents, r.idempotency_key) for r in store.refunds()] == [(4_200, "r1:refund")]
    assert outcomes(store) == [(1, "applied"), (2, "repeated")]


@pytest.mark.promise("S-41")
def test_a_key_is_not_good_for_another_request(store: BillingStore) -> None:
    store.refund(ORDER)
    with pytest.raises(Refusal, match="was used for another request"):
        store.refund(replace(ORDER, amount_cents=100))
    assert len(store.refunds()) == 1
    assert outcomes(store) == [(1, "applied"), (2, "refused")]


@pytest.mark.promise("S-16")
def test_a_worker_with_an_older_token_is_refused_even_what_is_already_paid(
    store: BillingStore,
) -> None:
    store.refund(replace(ORDER, fencing_token=3))
    with pytest.raises(Refusal, match="stale fencing token 2: run r1 was taken over under token 3"):
        store.refund(replace(ORDER, fencing_token=2))
    with pytest.raises(Refusal, match="stale fencing token"):
        store.refund(replace(ORDER, idempotency_key="r1:another", fencing_token=2))
    other_run = replace(ORDER, invoice_id="inv_42_02", idempotency_key="r2:refund")
    assert store.refund(other_run).invoice_id == "inv_42_02"


@pytest.mark.promise("S-16")
def test_a_refused_order_still_raises_the_fence(store: BillingStore) -> None:
    with pytest.raises(Refusal, match="must be positive"):
        store.refund(replace(ORDER, amount_cents=0, fencing_token=5))
    with pytest.raises(Refusal, match="stale fencing token 4"):
        store.refund(replace(ORDER, fencing_token=4))
    assert store.refunds() == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"amount_cents": 0}, "amount_cents must be positive, not 0"),
        ({"amount_cents": -5}, "amount_cents must be positive, not -5"),
        ({"amount_cents": 4_201}, "4201 cents is more than the 4200 cents of invoice inv_42_03"),
        ({"amount_cents": 10**30}, "is more than the 4200 cents"),
        ({"invoice_id": "inv_0"}, "there is no invoice 'inv_0'"),
        ({"idempotency_key": "no-run"}, "must be '<run_id>:<step key>'"),
        ({"idempotency_key": ":refund"}, "must be '<run_id>:<step key>'"),
        ({"idempotency_key": "r1:\ud83d"}, "must be '<run_id>:<step key>'"),
        ({"fencing_token": 0}, "fencing_token must be between 1 and"),
        ({"fencing_token": 2**63}, "fencing_token must be between 1 and"),
    ],
)
def test_bad_orders_are_refused_with_a_sentence_and_logged(
    store: BillingStore, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Refusal) as refused:
        store.refund(replace(ORDER, **change))
    assert sentence in str(refused.value)
    assert store.refunds() == []
    assert [call.outcome for call in store.calls()] == ["refused"]
    assert store.refund(ORDER).amount_cents == 4_200  # nothing half-written stands in the way


def test_parts_of_an_invoice_can_be_refunded_until_nothing_is_left(store: BillingStore) -> None:
    store.refund(replace(ORDER, amount_cents=4_000))
    with pytest.raises(Refusal, match="more than the 200 cents"):
        store.refund(replace(ORDER, amount_cents=201, idempotency_key="r2:refund"))
    store.refund(replace(ORDER, amount_cents=200, idempotency_key="r3:refund"))
    assert store.list_invoices("c_42").invoices[-1].refunded_cents == 4_200


@pytest.mark.promise("S-41")
def test_many_at_once_under_one_key_pay_once(store: BillingStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(store.refund, [ORDER] * 16))
    assert len({receipt.refund_id for receipt in receipts}) == 1
    assert len(store.refunds()) == 1
    assert sorted(outcomes(store), key=lambda call: call[0] or 0) == [
        (1, "applied"),
        *[(attempt, "repeated") for attempt in range(2, 17)],
    ]


# --- over HTTP, in a process of its own -------------------------------------------------


class Process:
    """The billing system as a process."""

    def __init__(self, folder: Path) -> None:
        self.store = BillingStore(folder / "billing.db")
        self.hold = folder / "hold"
        self.hold.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "supportpilot.billing", "--db", str(folder / "billing.db")]
        command += ["--port", "0", "--hold-dir", str(self.hold)]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        self.url: str = json.loads(self.child.stdout.readline())["url"]

    def stop(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = Process(tmp_path)
    yield started
    started.stop()


REFUND = {
    "invoice_id": "inv_42_03",
    "amount_cents": 4_200,
    "idempotency_key": "r1:refund",
    "fencing_token": 1,
}


async def test_tools_declare_what_they_do_to_the_world(process: Process) -> None:
    async with Client(process.url) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    reading, paying = tools["list_invoices"].annotations, tools["create_refund"].annotations
    assert reading is not None
    assert paying is not None
    assert reading.read_only_hint
    assert (paying.read_only_hint, paying.idempotent_hint, paying.destructive_hint) == (
        False,
        True,
        True,
    )
    schema = tools["create_refund"].input_schema
    assert {"idempotency_key", "fencing_token"} <= set(schema["required"])


@pytest.mark.promise("S-41")
async def test_refunds_over_http_are_paid_once_and_refused_in_sentences(process: Process) -> None:
    billing = BillingClient(process.url)
    page = await billing.call("list_invoices", {"customer_id": "c_42"}, tenant="t_acme")
    assert [invoice["id"] for invoice in page["invoices"]][-1] == "inv_42_03"
    first = await billing.call("create_refund", REFUND, tenant="t_acme")
    again = await billing.call("create_refund", {**REFUND, "fencing_token": 2}, tenant="t_acme")
    assert first == again == Receipt(**first).model_dump()
    with pytest.raises(BillingError, match=r"^stale fencing token 1"):
        await billing.call("create_refund", REFUND, tenant="t_acme")
    other = {**REFUND, "idempotency_key": "r9:refund"}
    with pytest.raises(BillingError, match="there is no invoice"):
        await billing.call("create_refund", other, tenant="t_globex")
    with pytest.raises(BillingError, match="amount_cents"):
        await billing.call("create_refund", {**REFUND, "amount_cents": "all"}, tenant="t_acme")
    assert len(process.store.refunds()) == 1


@pytest.mark.promise("S-41")
async def test_a_held_answer_comes_after_the_effect(process: Process) -> None:
    gate = process.hold / "create_refund"
    gate.touch()
    billing = BillingClient(process.url)
    waiting = asyncio.create_task(billing.call("create_refund", REFUND, tenant="t_acme"))
    await until(lambda: bool(process.store.refunds()))
    assert not waiting.done()
    assert outcomes(process.store) == [(1, "applied")]
    gate.unlink()
    assert (await waiting)["amount_cents"] == 4_200


@pytest.mark.promise("S-41")
async def test_a_client_killed_in_mid_call_leaves_one_refund_and_a_healthy_server(
    process: Process,
) -> None:
    gate = process.hold / "create_refund"
    gate.touch()
    code = (
        "import asyncio, json, sys\n"
        "from supportpilot.billing.client import BillingClient\n"
        "client = BillingClient(sys.argv[1])\n"
        "asyncio.run(client.call('create_refund', json.loads(sys.argv[2]), tenant='t_acme'))\n"
    )
    command = [sys.executable, "-c", code, process.url, json.dumps(REFUND)]
    child = subprocess.Popen(command)  # noqa: ASYNC220  # it is killed, not awaited
    await until(lambda: bool(process.store.refunds()))
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    gate.unlink()
    again = {**REFUND, "fencing_token": 2}
    receipt = await BillingClient(process.url).call("create_refund", again, tenant="t_acme")
    assert receipt["refund_id"] == "rf_0001"
    assert outcomes(process.store) == [(1, "applied"), (2, "repeated")]
    assert len(process.store.refunds()) == 1


async def test_a_killed_billing_system_still_knows_its_keys(tmp_path: Path) -> None:
    first = Process(tmp_path)
    await BillingClient(first.url).call("create_refund", REFUND, tenant="t_acme")
    first.stop()
    second = Process(tmp_path)
    try:
        await BillingClient(second.url).call("create_refund", REFUND, tenant="t_acme")
        assert len(second.store.refunds()) == 1
    finally:
        second.stop()


async def until(condition: Any, seconds: float = 20.0) -> None:
    """Wait for another process."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.02)


def test_the_server_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    started = Process(tmp_path)
    os.kill(started.child.pid, signal.SIGTERM)
    assert started.child.wait(timeout=10) in (0, -signal.SIGTERM)
    started.stop()
