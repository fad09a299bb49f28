"""Drafting the reply by rules, in the ticket's language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supportpilot.rules.tickets import is_chinese

_ENGLISH = {
    "refunded": "Hello, we have refunded {amount} to you. It arrives within 3 to 5 working days. "
    "We are sorry for the trouble.",
    "refused": "Hello, we have checked your request, and we can't refund this amount. "
    "The reason: {reason}",
    "expired": "Hello, your request for a refund was not approved in time, and nothing was "
    "refunded yet. A colleague will contact you.",
    "not_found": "Hello, we looked through your invoices and found none that fits. "
    "Please send us the number of the invoice.",
    "billing": "Hello, thank you for your question about billing. A colleague will look at your "
    "account and answer you.",
    "other": "Hello, thank you for your message. A colleague will answer you soon.",
}
_CHINESE = {
    "refunded": "您好,我们已为您退款 {amount},预计 3 至 5 个工作日到账。给您带来不便,非常抱歉。",
    "refused": "您好,我们核实了您的请求,这笔款项无法退款。原因:{reason}",
    "expired": "您好,您的退款申请未能及时审批,目前尚未退款。我们的同事会与您联系。",
    "not_found": "您好,我们查看了您的账单,没有找到符合的款项。请您提供账单编号。",
    "billing": "您好,感谢您的账单咨询。我们的同事会查看您的账户并回复您。",
    "other": "您好,感谢您的来信。我们的同事会尽快回复您。",
}
_NO_REASON = {True: "主管未说明。", False: "the supervisor gave none."}


def draft(facts: Mapping[str, Any]) -> str:
    """Write the reply that the facts allow; nothing else is promised."""
    chinese = is_chinese(str(facts.get("ticket", "")))
    texts = _CHINESE if chinese else _ENGLISH
    refund = facts.get("refund") or {}
    outcome = facts.get("outcome")
    if outcome == "no_refund_asked":
        outcome = facts.get("category")
    # str.replace, not format: a reason may have braces.
    text = texts.get(str(outcome), texts["other"])
    text = text.replace("{amount}", _money(refund))
    return text.replace("{reason}", str(refund.get("reason") or _NO_REASON[chinese]))


def _money(refund: Mapping[str, Any]) -> str:
    cents = int(refund.get("amount_cents") or 0)
    return f"{cents // 100:,}.{cents % 100:02d} {refund.get('currency', '')}".rstrip()
