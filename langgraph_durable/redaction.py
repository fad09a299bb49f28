"""Redaction: fields that are kept, because a call needs them, and not shown to anybody.

By name wherever it stands (`Durable(..., redact=["iban"])`), and by a tool's own schema, where
a property says `"sensitive": true` or `"format": "password"`. What is stored as a payload, and
what digests are made of, stays the true value; what is made for people gets the marker.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from langgraph_durable.errors import BadInput
from langgraph_durable.values import readable

REDACTED = "[redacted]"
NAMES_VARIABLE = "LANGGRAPH_DURABLE_REDACT"
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Redaction:
    """The names of fields that are not shown, whatever their case."""

    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: Iterable[str] | None = None) -> Redaction:
        """Return a redaction of these names, else of those in the environment."""
        if names is None:
            names = os.environ.get(NAMES_VARIABLE, "").split(",")
        return cls(frozenset(name.strip().casefold() for name in names if name.strip()))

    def shown(self, value: Any, schema: Mapping[str, Any] | None = None) -> Any:
        """Return a value with markers in its redacted fields; itself if it has none."""
        names = self.names if schema is None else self.names | frozenset(_sensitive(schema))
        return _shown(value, names) if names else value

    def readable(self, value: Any, schema: Mapping[str, Any] | None = None) -> str:
        """Return the short form of a value, redacted."""
        return readable(self.shown(value, schema))


def restored(edited: Any, shown: Any, true: Any) -> Any:
    """Return what a person edited, with the true values where they left a marker as it was.

    Raises:
        BadInput: a marker stands where none was shown; no tool is to be called with it.
    """
    if edited == REDACTED and edited != true:
        if shown != REDACTED:
            raise BadInput(f"{REDACTED} stands where nothing was redacted: type the value itself")
        return true
    if isinstance(edited, Mapping):
        return {
            name: restored(item, _item(shown, name), _item(true, name))
            for name, item in edited.items()
        }
    if isinstance(edited, list):
        return [restored(item, _item(shown, i), _item(true, i)) for i, item in enumerate(edited)]
    return edited


def _item(held: Any, at: Any) -> Any:
    try:
        return held[at]
    except (KeyError, IndexError, TypeError):
        return _MISSING


def _sensitive(schema: Any) -> Iterator[str]:
    """Return the names of the properties that a JSON Schema marks, at any depth."""
    if isinstance(schema, list):
        for part in schema:
            yield from _sensitive(part)
    if not isinstance(schema, Mapping):
        return
    properties = schema.get("properties")
    for name, about in properties.items() if isinstance(properties, Mapping) else ():
        if isinstance(about, Mapping) and _is_marked(about):
            yield str(name).casefold()
    for part in schema.values():
        yield from _sensitive(part)


def _is_marked(about: Mapping[str, Any]) -> bool:
    return about.get("sensitive") is True or about.get("format") == "password"


def _shown(value: Any, names: frozenset[str]) -> Any:
    """Return the value itself, not a copy, where nothing is redacted."""
    if isinstance(value, Mapping):
        found = {
            name: REDACTED if _is_named(name, names) else _shown(item, names)
            for name, item in value.items()
        }
        return found if any(found[name] is not value[name] for name in found) else value
    if type(value) in (list, tuple):
        items = [_shown(item, names) for item in value]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else type(value)(items)
    if isinstance(value, BaseModel):
        return _with(value, list(type(value).model_fields), names)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _with(value, [field.name for field in dataclasses.fields(value)], names)
    return value


def _is_named(name: Any, names: frozenset[str]) -> bool:
    return isinstance(name, str) and name.casefold() in names


def _with(value: Any, fields: list[str], names: frozenset[str]) -> Any:
    held = {name: getattr(value, name) for name in fields if hasattr(value, name)}
    found = _shown(held, names)
    if found is held:
        return value
    clone = copy.copy(value)
    for name, item in found.items():
        object.__setattr__(clone, name, item)
    return clone
