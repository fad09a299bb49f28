"""The customers and invoices that every new billing file begins with, always the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Invoice:
    """One invoice as it was issued."""

    id: str
    tenant: str
    customer_id: str
    position: int  # its place in the customer's list
    description: str
    period: str
    amount_cents: int
    currency: str
    issued_on: str


@dataclass(frozen=True, slots=True)
class _Account:
    tenant: str
    customer_id: str
    currency: str
    months: int  # monthly invoices before the yearly one
    yearly_cents: int
    times_charged: int  # how often the yearly plan was charged: 2 is the mistake


ACCOUNTS = (
    _Account("t_acme", "c_42", "CNY", 1, 4_200, 2),
    _Account("t_acme", "c_43", "CNY", 2, 4_200, 1),
    _Account("t_globex", "c_77", "USD", 7, 12_900, 2),  # the pair is on the second page
    _Account("t_initech", "c_101", "USD", 4, 9_900, 2),  # the pair is torn by the page's end
    _Account("t_umbrella", "c_120", "EUR", 2, 25_000, 2),
    _Account("t_hooli", "c_130", "USD", 12, 48_000, 1),
    _Account("t_stark", "c_140", "USD", 3, 99_900, 2),
    _Account("t_wayne", "c_150", "USD", 1, 150_000, 2),
    _Account("t_cyberdyne", "c_160", "CHF", 5, 6_000, 1),
    _Account("t_tyrell", "c_170", "CNY", 2, 7_700, 2),
    _Account("t_aperture", "c_180", "EUR", 3, 3_300, 2),
)


def invoices() -> Iterator[Invoice]:
    """Give every seeded invoice, account by account, oldest first."""
    for account in ACCOUNTS:
        yield from _of(account)


def _of(account: _Account) -> Iterator[Invoice]:
    number = account.customer_id.removeprefix("c_")
    for month in range(account.months):
        year, in_year = divmod(7 - account.months + month, 12)
        period = f"{2026 + year}-{in_year + 1:02d}"
        yield Invoice(
            id=f"inv_{number}_{month + 1:02d}",
            tenant=account.tenant,
            customer_id=account.customer_id,
            position=month,
            description="Monthly add-on",
            period=period,
            amount_cents=500 + 10 * month,
            currency=account.currency,
            issued_on=f"{period}-01",
        )
    for time in range(account.times_charged):
        yield Invoice(
            id=f"inv_{number}_{account.months + time + 1:02d}",
            tenant=account.tenant,
            customer_id=account.customer_id,
            position=account.months + time,
            description="Annual plan",
            period="2026-08/2027-07",
            amount_cents=account.yearly_cents,
            currency=account.currency,
            issued_on=f"2026-08-{3 + time:02d}",
        )
