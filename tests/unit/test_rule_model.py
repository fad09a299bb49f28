"""The rule-based model: three jobs, two languages, no keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from supportpilot.answers import category_of, choice_of, paid, refused
from supportpilot.graph import MAX_PAGES, after_choose, after_classify
from supportpilot.model import RuleModel, chat_models
from supportpilot.prompts import choose_messages, classify_messages, draft_messages
from supportpilot.settings import Settings
from supportpilot.state import Invoice, Settled, State

MODEL = RuleModel()
DEMO = "上个月年付扣了两次,退一笔"


def invoice(
    number: int, description: str = "Annual plan", cents: int = 4_200, refunded: int = 0
) -> Invoice:
    return {
        "id": f"inv_{number}",
        "description": description,
        "period": "2026",
        "amount_cents": cents,
        "refunded_cents": refunded,
        "currency": "CNY",
        "issued_on": "2026-08-01",
    }


def category(ticket: str) -> str:
    return category_of(MODEL.invoke(classify_messages({"ticket": ticket})))


def choose(ticket: str, invoices: Sequence[Invoice], *, has_more: bool = False) -> State:
    state: State = {"ticket": ticket, "invoices": list(invoices), "has_more": has_more}
    return choice_of(MODEL.invoke(choose_messages(state)), state)


@pytest.mark.promise("S-71")
@pytest.mark.parametrize(
    ("ticket", "expected"),
    [
        (DEMO, "refund"),
        ("年费重复扣款,请处理", "refund"),
        ("我要退款", "refund"),
        ("请退 10 元给我", "refund"),
        ("这个月多扣了钱", "refund"),
        ("I was charged twice for the annual plan", "refund"),
        ("You billed my card twice!", "refund"),
        ("Please give me my money back", "refund"),
        ("Refund $10.50 of inv_42_03", "refund"),
        ("There is a duplicate charge", "refund"),
        ("请给我开发票,抬头是 Acme", "billing"),
        ("不用退款,只想问一下账单", "billing"),
        ("Where is my invoice for July?", "billing"),
        ("No refund needed, I only want a receipt", "billing"),
        ("I don't want a refund even though you charged me twice", "billing"),
        ("How do I change my payment method?", "billing"),
        ("怎么退出登录?", "other"),
        ("我想退订邮件", "other"),
        ("无法登录,密码忘了", "other"),
        ("The app crashes when I open it", "other"),
        ("What are your opening hours?", "other"),
        ("", "other"),
        ("🙂", "other"),
    ],
)
def test_tickets_are_sorted(ticket: str, expected: str) -> None:
    assert category(ticket) == expected


@pytest.mark.promise("S-71")
@pytest.mark.parametrize("ticket", [DEMO, "My yearly plan was charged twice, refund one"])
def test_charged_twice_chooses_the_last_one_of_the_pair(ticket: str) -> None:
    listed = [invoice(1, "Monthly add-on", 500), invoice(2), invoice(3), invoice(4, cents=900)]
    assert choose(ticket, listed)["choice"] == {"invoice_id": "inv_3", "amount_cents": 4_200}


def test_no_pair_on_this_page_asks_for_the_next_one_if_there_is_one() -> None:
    assert choose(DEMO, [invoice(1)], has_more=True) == {"choice": None, "wants_more": True}
    assert choose(DEMO, [invoice(1)], has_more=False) == {"choice": None, "wants_more": False}
    assert choose(DEMO, [], has_more=False) == {"choice": None, "wants_more": False}


def test_a_pair_that_was_already_mended_is_not_refunded_again() -> None:
    listed = [invoice(1), invoice(2, refunded=4_200)]
    assert choose(DEMO, listed)["choice"] is None


@pytest.mark.parametrize(
    ("ticket", "chosen"),
    [
        ("Refund inv_1 please", ("inv_1", 4_200)),
        ("Refund $10.50 of inv_1", ("inv_1", 1_050)),
        ("请退 10 元, inv_1", ("inv_1", 1_000)),
        ("refund 5 usd", ("inv_3", 500)),
        ("Please refund my yearly plan", ("inv_2", 4_200)),
        ("我要退款", ("inv_3", 700)),
        ("Refund $99.00 please", ("inv_3", 700)),  # more than there is: what there is
        ("refund 2 invoices", ("inv_3", 700)),  # a number that is no sum
    ],
)
def test_invoices_and_amounts_are_read_from_the_ticket(
    ticket: str, chosen: tuple[str, int]
) -> None:
    listed = [invoice(1), invoice(2), invoice(3, "Monthly add-on", 700)]
    picked = choose(ticket, listed)["choice"]
    assert picked is not None
    assert (picked["invoice_id"], picked["amount_cents"]) == chosen


def test_an_invoice_that_is_not_listed_is_not_chosen() -> None:
    assert choose("Refund inv_999", [invoice(1)])["choice"] is None


RECEIPT = {"amount_cents": 4_200, "currency": "CNY"}
CHOSEN: State = {
    "invoices": [invoice(1)],
    "choice": {"invoice_id": "inv_1", "amount_cents": 4_200},
}


@pytest.mark.parametrize(
    ("settled", "chinese", "english"),
    [
        (paid(RECEIPT), "已为您退款 42.00 CNY", "refunded 42.00 CNY"),
        (refused(CHOSEN, "已超过 30 天 {x}", expired=False), "原因:已超过 30 天 {x}", "reason:"),
        (refused(CHOSEN, "", expired=False), "主管未说明", "the supervisor gave none"),
        (refused(CHOSEN, "", expired=True), "未能及时审批", "not approved in time"),
        (None, "没有找到", "found none"),
    ],
)
def test_the_reply_says_what_happened_in_the_tickets_language(
    settled: Settled | None, chinese: str, english: str
) -> None:
    for ticket, expected in ((DEMO, chinese), ("Charged twice", english)):
        state: State = {"ticket": ticket, "category": "refund"}
        if settled is not None:
            state["refund"] = settled
        assert expected in MODEL.invoke(draft_messages(state)).text


def test_other_tickets_get_a_reply_that_promises_nothing() -> None:
    for kind, expected in (("billing", "about billing"), ("other", "your message")):
        state: State = {"ticket": "Hello", "category": kind}  # type: ignore[typeddict-item]
        reply = MODEL.invoke(draft_messages(state)).text
        assert expected in reply
        assert "refunded" not in reply


def test_usage_is_counted_and_the_same_messages_get_the_same_answer() -> None:
    first, second = (MODEL.invoke(classify_messages({"ticket": DEMO})) for _ in range(2))
    assert first.content == second.content
    assert first.usage_metadata is not None
    assert first.usage_metadata == second.usage_metadata
    assert first.usage_metadata["input_tokens"] > 10
    assert first.usage_metadata["output_tokens"] > 0


def test_a_ticket_without_a_text_is_answered_too() -> None:
    assert category_of(MODEL.invoke(classify_messages({}))) == "other"


async def test_calls_are_counted_in_a_file(tmp_path: Path) -> None:
    model = RuleModel(route="smart", calls=tmp_path / "calls")
    await model.ainvoke(classify_messages({"ticket": DEMO}))
    model.invoke(draft_messages({"ticket": DEMO}))
    lines = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert [(line["job"], line["route"]) for line in lines] == [
        ("classify", "smart"),
        ("draft", "smart"),
    ]


def test_an_unknown_job_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="SUPPORTPILOT_MODEL_FAST"):
        MODEL.invoke([SystemMessage("Write a poem"), HumanMessage("now")])


@pytest.mark.promise("S-65")
def test_each_route_has_its_model_and_a_provider_replaces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-real-key")
    monkeypatch.setenv("SUPPORTPILOT_MODEL_SMART", "openai:gpt-4.1-mini")
    models = chat_models(Settings())
    assert isinstance(models["fast"], RuleModel)
    assert type(models["smart"]).__name__ == "ChatOpenAI"


def test_an_unknown_provider_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPPORTPILOT_MODEL_FAST", "nonsense:model")
    with pytest.raises(ValueError, match="nonsense"):
        chat_models(Settings())


# --- whatever a real model may answer ---------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"category": "refund"}', "refund"),
        ('Sure!\n```json\n{"category": "billing"}\n```', "billing"),
        ('{"category": "free money"}', "other"),
        ('{"category": ["refund"]}', "other"),
        ("refund", "other"),
        ("[1]", "other"),
        ("} {", "other"),
    ],
)
def test_an_unclear_category_is_other(answer: str, expected: str) -> None:
    assert category_of(AIMessage(answer)) == expected


@pytest.mark.parametrize(
    "said",
    [
        {"invoice": "inv_7", "amount_cents": 100},
        {"invoice": "inv_1", "amount_cents": 4_201},
        {"invoice": "inv_1", "amount_cents": -1},
        {"invoice": "inv_1", "amount_cents": True},
        {"invoice": "inv_1", "amount_cents": "4200"},
        {"invoice": {"id": "inv_1"}},
        {},
    ],
)
def test_an_answer_that_does_not_fit_what_was_listed_chooses_nothing(said: dict[str, Any]) -> None:
    state: State = {"invoices": [invoice(1)]}
    assert choice_of(AIMessage(json.dumps(said)), state)["choice"] is None


def test_the_graph_takes_the_way_that_the_state_names() -> None:
    assert after_classify({"category": "refund", "customer_id": "c_42"}) == "list_invoices"
    assert after_classify({"category": "refund"}) == "draft"
    assert after_classify({"category": "billing"}) == "draft"
    assert after_classify({"category": "other"}) == "draft"
    asks: State = {"choice": None, "wants_more": True, "has_more": True, "page": 1}
    assert after_choose(asks) == "list_invoices"
    assert after_choose({**asks, "has_more": False}) == "draft"
    assert after_choose({**asks, "page": MAX_PAGES}) == "draft"
    assert after_choose({**asks, "choice": CHOSEN["choice"]}) == "refund"
