"""The demo's figures: what is counted, and that a wrong one is noticed."""

from __future__ import annotations

import json
from dataclasses import replace

from supportpilot.demo.figures import Figures

RIGHT = Figures(
    mode="steps",
    status="succeeded",
    refunds=1,
    amount_cents=4_200,
    model_calls=3,
    model_calls_without_kills=3,
    tool_calls={"create_refund": 2, "list_invoices": 2},
    kills=3,
    duplicate_approvals_ignored=1,
)


def test_the_line_has_the_names_that_were_asked_for() -> None:
    assert list(json.loads(RIGHT.line())) == [
        "mode",
        "status",
        "refunds",
        "amount_cents",
        "model_calls",
        "model_calls_without_kills",
        "tool_calls",
        "kills",
        "duplicate_approvals_ignored",
    ]
    assert "\n" not in RIGHT.line()


def test_right_figures_have_nothing_wrong() -> None:
    assert RIGHT.wrong() == []


def test_each_wrong_figure_is_named() -> None:
    wrong = replace(
        RIGHT,
        status="failed",
        refunds=2,
        amount_cents=8_400,
        model_calls=4,
        model_calls_without_kills=5,
        tool_calls={"create_refund": 1},
        kills=2,
        duplicate_approvals_ignored=0,
    )
    said = wrong.wrong()
    assert len(said) == 8
    assert "steps mode: refunds is 2, not 1" in said
