"""Values as plain data that two runs can be compared by."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from pydantic import BaseModel


def plain(value: Any, given: Mapping[Any, str] | None = None) -> Any:
    """Return a value as plain data, without the ids that messages get anew in every run.

    `given` names what else is new in every run (its id, the time, random numbers): the names
    stand for them, also inside of texts.
    """
    names = given or {}
    if isinstance(value, (datetime, UUID, float)):
        return names.get(value, value)
    if isinstance(value, str):
        return _named(value, names)
    if isinstance(value, BaseMessage):
        calls = getattr(value, "tool_calls", [])
        return [value.type, plain(value.content, names), plain(calls, names)]
    if isinstance(value, BaseModel):
        return plain(value.model_dump(), names)
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, names)
    if isinstance(value, Mapping):
        return {str(plain(key, names)): plain(item, names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, names) for item in value]
    return value


def _named(text: str, names: Mapping[Any, str]) -> str:
    for what, name in names.items():
        for form in {str(what), what.isoformat() if isinstance(what, datetime) else str(what)}:
            text = text.replace(form, name)
    return text
