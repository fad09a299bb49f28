"""Reading a ticket by rules, in Chinese and English."""

from __future__ import annotations

import re
from decimal import Decimal

from supportpilot.state import Category

_NO_REFUND = re.compile(
    r"(?:不用|不需要|无需|不要|不必|不想)(?:给我)?退\w{0,2}"
    r"|\b(?:no|not|without|don't|do not|doesn't)\b[^.,;!?]{0,24}\b(?:refund\w*|money back)",
    re.IGNORECASE,
)
_REFUND = re.compile(
    r"退(?:款|费|钱|还|回(?!复)|一笔|一次|掉|给我|我)|退.{0,8}?(?:元|块|笔|钱)"
    r"|\brefund|\bmoney back|\breimburs|\bchargeback|\b(?:give|pay|send) (?:it|me) back",
    re.IGNORECASE,
)
_CHARGED_TWICE = re.compile(
    r"(?:扣|收|付|缴|划)(?:款|费|钱)?了?(?:两|二|2|俩)(?:次|笔|遍|回)"
    r"|(?:两|二|2)次(?:扣|收|付)|重复(?:扣|收|付)|多(?:扣|收)了?"
    r"|\b(?:charged|billed|paid|debited)\b[^.;!?]{0,40}\b(?:twice|two times|double)\b"
    r"|\b(?:twice|double|doubly)[ -](?:charged?|billed|debited|payment)\b|\bduplicate",
    re.IGNORECASE,
)
_BILLING = re.compile(
    r"发票|账单|抬头|付款|支付|扣款|扣费|收费|费用|续费|订单金额|价格|税号"
    r"|\b(?:invoices?|bill(?:s|ed|ing)?|pay(?:ment|ments|ing)?|receipts?|charges?|charged"
    r"|pric(?:e|es|ing)|vat|tax|subscription fee|credit card)\b",
    re.IGNORECASE,
)
_INVOICE_ID = re.compile(r"\binv_\w+", re.IGNORECASE)
_YEARLY = re.compile(r"年付|年费|年度|包年|按年|\b(?:annual|annually|yearly|year)\b", re.IGNORECASE)
_MONTHLY = re.compile(r"月付|月费|包月|按月|\bmonthly\b|\badd-?on\b", re.IGNORECASE)
_AMOUNT = re.compile(
    r"退(?:款|还|回|给我|我)?\s*[¥￥]?\s*(\d+(?:\.\d{1,2})?)\s*(?:元|块|人民币)"
    r"|\b(?:refund|back)(?: me| of| only| just)*\s*[$€£¥]\s*(\d+(?:\.\d{1,2})?)"
    r"|\b(?:refund|back)(?: me| of| only| just)*\s*(\d+(?:\.\d{1,2})?)"
    r"\s*(?:usd|eur|cny|jpy|dollars?|euros?|yuan)\b",
    re.IGNORECASE,
)
_CHINESE = re.compile(r"[\u3400-\u9fff]")


def is_chinese(text: str) -> bool:
    """Whether the reply is to be in Chinese."""
    return bool(_CHINESE.search(text))


def category(ticket: str) -> Category:
    """Sort a ticket. Being charged twice is a refund, unless none is wanted."""
    asked = _NO_REFUND.sub(" ", ticket)
    declined = asked != ticket
    if _REFUND.search(asked) or (_CHARGED_TWICE.search(asked) and not declined):
        return "refund"
    return "billing" if declined or _BILLING.search(ticket) else "other"


def charged_twice(ticket: str) -> bool:
    """Whether the customer says that something was charged twice."""
    return bool(_CHARGED_TWICE.search(ticket))


def invoice_id(ticket: str) -> str | None:
    """Return the invoice that the ticket names, if it names one."""
    found = _INVOICE_ID.search(ticket)
    return found.group().lower() if found else None


def plan(ticket: str) -> str | None:
    """Return the word in an invoice's description that the ticket hints at."""
    if _YEARLY.search(ticket):
        return "annual"
    return "monthly" if _MONTHLY.search(ticket) else None


def amount_cents(ticket: str) -> int | None:
    """Return the part that the customer wants back, if the ticket names a sum."""
    found = _AMOUNT.search(ticket)
    if found is None:
        return None
    return int(Decimal(next(filter(None, found.groups()))) * 100)
