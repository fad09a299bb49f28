"""What was measured in a story, and what is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass

from supportpilot.demo.story import Mode, Story

#: What the ticket must come to, however often its workers die.
EXPECTED_CENTS = 4_200
EXPECTED_MODEL_CALLS = 3
EXPECTED_KILLS = 3
#: A call whose answer died with its worker is made again: once each, and no more.
EXPECTED_TOOL_CALLS = {"create_refund": 2, "list_invoices": 2}


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one mode. Each is counted where it happened."""

    mode: Mode
    status: str
    refunds: int
    amount_cents: int
    model_calls: int
    model_calls_without_kills: int
    tool_calls: dict[str, int]
    kills: int
    duplicate_approvals_ignored: int

    def line(self) -> str:
        """Return the figures as one line of JSON."""
        return json.dumps(asdict(self))

    def wrong(self) -> list[str]:
        """Return a sentence for every figure that is not as promised."""
        promised: dict[str, object] = {
            "status": "succeeded",
            "refunds": 1,
            "amount_cents": EXPECTED_CENTS,
            "model_calls": EXPECTED_MODEL_CALLS,
            "model_calls_without_kills": EXPECTED_MODEL_CALLS,
            "tool_calls": EXPECTED_TOOL_CALLS,
            "kills": EXPECTED_KILLS,
            "duplicate_approvals_ignored": 1,
        }
        return [
            f"{self.mode} mode: {name} is {found!r}, not {promised[name]!r}"
            for name, found in asdict(self).items()
            if name in promised and found != promised[name]
        ]


def measure(killed: Story, control: Story) -> Figures:
    """Count what is in the ledger, the call logs and the audit."""
    return Figures(
        mode=killed.mode,
        status=killed.run.status.value,
        refunds=len(killed.ledger),
        amount_cents=sum(row.amount_cents for row in killed.ledger),
        model_calls=len(killed.model_calls),
        model_calls_without_kills=len(control.model_calls),
        tool_calls=dict(sorted(Counter(call.tool for call in killed.billing_calls).items())),
        kills=len(killed.kills),
        duplicate_approvals_ignored=len(killed.ignored_clicks),
    )
