"""The JSON form of values: always JSON, never an error."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel

from langgraph_durable.web.plain import plain


class Colour(Enum):
    RED = "red"


class Ticket(BaseModel):
    id: int
    due: Decimal


@dataclass
class Pair:
    left: Any
    right: Any


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, True),
        (2**70, 2**70),
        ((1, (2,)), [1, [2]]),
        ({3, 1}, [1, 3]),
        ({1: "a", (1, 2): "b"}, {"1": "a", "[1, 2]": "b"}),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2026, 5, 1, tzinfo=UTC), "2026-05-01T00:00:00+00:00"),
        (date(2026, 5, 1), "2026-05-01"),
        (timedelta(minutes=1), 60.0),
        (b"\xff", "/w=="),
        (Colour.RED, "red"),
        (Ticket(id=1, due=Decimal(2)), {"id": 1, "due": "2"}),
        (Pair(Colour.RED, (1,)), {"left": "red", "right": [1]}),
        ("a\ud83d", "a�"),
        ({"\ud83d": 1}, {"�": 1}),
        (HumanMessage("hi"), {"type": "human", "content": "hi"}),
    ],
)
def test_what_json_lacks_has_a_documented_form(value: Any, shown: Any) -> None:
    assert plain(value) == shown
    assert type(plain(value)) is type(shown)


def test_a_message_keeps_its_tool_calls() -> None:
    call = {"name": "pay", "args": {"cents": 1}, "id": "c1", "type": "tool_call"}
    shown = plain(AIMessage("", tool_calls=[call]))
    assert shown["tool_calls"] == [call]
    assert shown["type"] == "ai"


def test_a_value_without_end_is_shown_in_short() -> None:
    loop: list[Any] = []
    loop.append(loop)
    json.dumps(plain(loop))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner)
        ),
        max_leaves=20,
    )
)
def test_the_form_is_always_json(value: Any) -> None:
    json.dumps(plain(value), allow_nan=False).encode("utf-8")
