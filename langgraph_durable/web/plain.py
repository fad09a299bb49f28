"""The JSON form in which values leave by HTTP.

A journaled value may hold what JSON can't: it is shown, not sent to be read back as the
same type. Input is JSON and comes back as it was sent.

    tuple, set, frozenset          a list (sets sorted by their text)
    dict                           an object; keys that aren't text become their text
    Enum                           its value
    pydantic model, dataclass      an object of its fields
    a LangChain message            {"type", "content", "id", "name", "tool_calls", ...}
    datetime, date, time           ISO 8601
    timedelta                      seconds
    Decimal, UUID, Fraction, ...   text
    bytes                          base64
    NaN, Infinity, -Infinity       the words "NaN", "Infinity", "-Infinity"
    lone surrogates in text        U+FFFD
    anything else                  a short readable text
"""

from __future__ import annotations

import dataclasses
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from math import isfinite, isnan
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from langgraph_durable.values import readable

MAX_DEPTH = 150  # deeper than any value that the journal keeps


def plain(value: Any, depth: int = 0) -> Any:
    """Return the JSON form of a value; never raises."""
    if value is None or isinstance(value, bool):
        return value
    if depth <= MAX_DEPTH:
        for kind, show in _FORMS:
            if isinstance(value, kind):
                return show(value, depth)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _fields(value, (field.name for field in dataclasses.fields(value)), depth)
    return readable(value)


def text(value: str) -> str:
    """Return text that UTF-8 can carry."""
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _number(value: float, _: int) -> float | str:
    if isfinite(value):
        return float(value)
    return "NaN" if isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _object(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    return {
        text(key if isinstance(key, str) else str(plain(key, depth + 1))): plain(item, depth + 1)
        for key, item in value.items()
    }


def _list(value: Any, depth: int) -> list[Any]:
    return [plain(item, depth + 1) for item in value]


def _sorted_list(value: Any, depth: int) -> list[Any]:
    return sorted(_list(value, depth), key=repr)


def _fields(value: Any, names: Iterable[str], depth: int) -> dict[str, Any]:
    return _object({name: getattr(value, name, None) for name in names}, depth)


def _model(value: BaseModel, depth: int) -> dict[str, Any]:
    return {
        **_fields(value, type(value).model_fields, depth),
        **_object(value.model_extra or {}, depth),
    }


def _message(value: BaseMessage, depth: int) -> dict[str, Any]:
    # a message has many fields that are nearly always empty
    shown = _model(value, depth)
    return {name: item for name, item in shown.items() if name in ("type", "content") or item}


_FORMS: list[tuple[Any, Callable[[Any, int], Any]]] = [
    (Enum, lambda value, depth: plain(value.value, depth + 1)),
    (str, lambda value, _: text(value)),
    (int, lambda value, _: int(value)),
    (float, _number),
    (BaseMessage, _message),
    (BaseModel, _model),
    (Mapping, _object),
    (list | tuple, _list),
    (set | frozenset, _sorted_list),
    (datetime | date | time, lambda value, _: value.isoformat()),
    (timedelta, lambda value, _: value.total_seconds()),
    (Decimal | UUID | Fraction, lambda value, _: str(value)),
    (bytes | bytearray, lambda value, _: b64encode(value).decode("ascii")),
]
