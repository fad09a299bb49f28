"""What graph state becomes in the database, and what comes back.

Strict msgpack: LangGraph's own safe types and the classes registered by the application
come back as themselves; any other class comes back as a dict, and a name found in the
data never chooses code to run. Never pickle.

Text, on SQLite and PostgreSQL alike:

- In state, writes, messages, questions and answers, NUL and lone surrogates (half an
  emoji) come back as they were, as values and as dict keys, inside containers, pydantic
  models, dataclasses and `Send`. A value with a lone surrogate is stored in an escaped
  form under a type tag of its own, because UTF-8 has no surrogates. Inside any other
  object a lone surrogate becomes `?`.
- A whole number over 64 bits, which msgpack doesn't have, is kept in that escaped form too.
- What only the journal's encoding knows, such as a complex number, is kept in that one: an
  answer that was accepted is never lost on its way to the graph. What neither knows is
  refused, and the path and the type are named.
- In metadata, which only describes a checkpoint, NUL becomes U+2400, a lone surrogate
  U+FFFD, and a number that JSON doesn't have (NaN, infinity) null.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send
from pydantic import BaseModel, SecretStr

from ..encryption import Keyring
from ..errors import NotEncodable
from ..secrets import Revealed, Secret
from ..values import Types, clean_text, decode, encode

ESCAPED = "msgpack+surrogates"  # the type tag of an escaped value
JOURNALED = "langgraph-durable"  # and of one in the journal's encoding

# LangGraph writes a secret out in plain, behind the names of its module and its class.
_SECRETS = [
    b"".join(bytes([0xA0 + len(name)]) + name.encode() for name in names)
    for names in (
        (SecretStr.__module__, "SecretStr"),
        (SecretStr.__module__, "SecretBytes"),
        (Secret.__module__, "Secret"),
    )
]
_NO_SECRETS = (
    "A secret is never stored. Read it in the node or tool that uses it, with ctx.secret(name), "
    "and keep its name in the state instead."
)
_NO_LIMIT = 1 << 40  # LangGraph has none for state
_MARK = "\x1b"
_BIG = "i"  # behind the mark: a whole number over 64 bits
_TO_ESCAPE = re.compile(f"[\ud800-\udfff{_MARK}]")
_ESCAPE = re.compile(f"{_MARK}([0-9a-f]{{4}})")
_NOT_IN_JSONB = re.compile("[\x00\ud800-\udfff]")


class Boxed:
    """A primitive that LangGraph would put into a JSON column, which would change or refuse it.

    The serializer opens the box, so that the value itself is what is stored.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def fits_json(value: Any) -> bool:
    """Whether a JSONB column gives a primitive back as it was, in value and in type."""
    if type(value) is str:
        return _NOT_IN_JSONB.search(value) is None
    # a float comes back as an int when it is large and whole; an Enum as its bare value
    return value is None or type(value) in (bool, int)


def unreachable(classes: Iterable[type]) -> list[str]:
    """Name the classes that come back as dicts all the same.

    LangGraph notes a class by its module and bare name, and so finds none inside a
    function or another class.
    """
    return [
        f"{cls.__module__}.{cls.__qualname__}"
        for cls in classes
        if getattr(sys.modules.get(cls.__module__), cls.__name__, None) is not cls
    ]


class StateSerializer(JsonPlusSerializer):
    """LangGraph's serializer, strict, which loses no lone surrogate."""

    def __init__(
        self,
        types: Types | None = None,
        secrets: Revealed | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        self._types = types or Types()
        # an empty allowlist is strict as well; to leave it out would allow everything
        allowed = tuple(self._types.classes)
        super().__init__(pickle_fallback=False, allowed_msgpack_modules=allowed)
        self._secrets = Revealed() if secrets is None else secrets  # an empty one is false
        self._keyring = keyring

    @property
    def guards(self) -> bool:
        """Whether no value may go around this serializer, into a JSON column as it is."""
        return self._keyring is not None or bool(self._secrets)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Encode, with markers in place of secrets that the pass has read; seal if there are keys.

        Raises:
            NotEncodable: it holds a secret, or what can't be kept.
        """
        if isinstance(obj, Boxed):
            obj = obj.value
        if self._secrets:
            obj = rewrite(obj, self._hide)
        tag, data = self._dumped(obj)
        if any(name in data for name in _SECRETS):
            raise NotEncodable("the graph's state", "$", "Secret", _NO_SECRETS)
        return (tag, data) if self._keyring is None else self._keyring.seal_typed(tag, data)

    def _hide(self, text: str | int) -> str | int:
        return text if isinstance(text, int) else self._secrets.hide(text)

    def _dumped(self, obj: Any) -> tuple[str, bytes]:
        """Encode; a value with lone surrogates gets a tag of its own."""
        try:
            tag, data = super().dumps_typed(obj)
        except TypeError:  # so it refuses a lone surrogate in a dict key, and much else
            return self._otherwise(obj)
        # In a value a lone surrogate becomes "?". Only then is there anything to look for.
        if tag == "msgpack" and b"?" in data:
            escaped = rewrite(obj, _escape)
            if escaped is not obj:
                return ESCAPED, super().dumps_typed(escaped)[1]
        return tag, data

    def _otherwise(self, obj: Any) -> tuple[str, bytes]:
        escaped = rewrite(obj, _escape)
        if escaped is not obj:
            try:
                return ESCAPED, super().dumps_typed(escaped)[1]
            except TypeError:  # there is more in it than texts
                pass
        text = encode(obj, types=self._types, where="the graph's state", limit_bytes=_NO_LIMIT)
        return JOURNALED, text.encode("ascii")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Decode what `dumps_typed` made."""
        if self._keyring is not None:
            data = self._keyring.open_typed(*data)
        tag, encoded = data
        if tag == JOURNALED:
            return decode(encoded.decode("ascii"), types=self._types)
        if tag == ESCAPED:
            return rewrite(super().loads_typed(("msgpack", encoded)), _unescape)
        return super().loads_typed(data)


STATE = "the graph's state"
WAY_OUT = (
    "Keep plain data, a pydantic model or a dataclass in the state, or the address of what is "
    "kept elsewhere."
)


def refusal(
    values: Iterable[tuple[str, Any]], serde: SerializerProtocol, error: TypeError
) -> Exception:
    """Return the error that names the first value which can't be kept; `error` if none is found."""
    way_out = error.way_out if isinstance(error, NotEncodable) else WAY_OUT  # of a secret
    for key, value in values:
        found = _unkept(value, serde, f"$.{key}")
        if found is not None:
            return NotEncodable(STATE, *found, way_out)
    return error


def _unkept(value: Any, serde: SerializerProtocol, path: str) -> tuple[str, str] | None:
    try:
        serde.dumps_typed(value)
    except TypeError:
        inner: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, Mapping):
            inner = ((f".{key}", part) for key, part in value.items())
        elif isinstance(value, list | tuple | set | frozenset):
            inner = ((f"[{i}]", part) for i, part in enumerate(value))
        for name, part in inner:
            found = _unkept(part, serde, f"{path}{name}")
            if found is not None:
                return found
        return path, f"{type(value).__module__}.{type(value).__qualname__}"
    return None


def _escape(text: str | int) -> str | int:
    if isinstance(text, int):  # one that msgpack doesn't have
        return f"{_MARK}{_BIG}{text:x}"
    if _TO_ESCAPE.search(text) is None:
        return text
    return _TO_ESCAPE.sub(lambda found: f"{_MARK}{ord(found[0]):04x}", text)


def _unescape(text: str | int) -> str | int:
    if isinstance(text, int) or _MARK not in text:
        return text
    if text.startswith(_MARK + _BIG):  # in an escaped text hexadecimal digits follow the mark
        return int(text[len(_MARK + _BIG) :], 16)
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def rewrite(value: Any, text: Callable[[str | int], str | int]) -> Any:
    """Return `value` with each string in it, and each huge whole number, passed through `text`.

    What has nothing to change is returned itself, not a copy.
    """
    if isinstance(value, str):
        return value if isinstance(value, Enum) else text(value)
    if type(value) is int:
        return text(value) if value.bit_length() > 63 else value
    if isinstance(value, dict):
        pairs = [(rewrite(key, text), rewrite(item, text)) for key, item in value.items()]
        same = all(k is key and v is value[key] for (k, v), key in zip(pairs, value, strict=True))
        return value if same else dict(pairs)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return _rewrite_items(value, text)
    if isinstance(value, BaseModel):
        return _rewrite_model(value, text)
    if isinstance(value, Send):
        return _rewrite_attributes(value, ["arg"], text)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _rewrite_attributes(value, [f.name for f in dataclasses.fields(value)], text)
    return value


def _rewrite_items(value: Any, text: Callable[[str | int], str | int]) -> Any:
    items = [rewrite(item, text) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    make = getattr(value, "_make", type(value))  # a named tuple takes its items one by one
    return make(items)


def _rewrite_model(value: BaseModel, text: Callable[[str | int], str | int]) -> BaseModel:
    kept = [name for name, field in type(value).model_fields.items() if not field.exclude]
    old = {name: value.__dict__[name] for name in kept if name in value.__dict__}
    old |= value.model_extra or {}
    new = {name: rewrite(item, text) for name, item in old.items()}
    changed = {name: item for name, item in new.items() if item is not old[name]}
    return value.model_copy(update=changed) if changed else value


def _rewrite_attributes(
    value: Any, names: list[str], text: Callable[[str | int], str | int]
) -> Any:
    clone = None
    for name in names:
        old = getattr(value, name)
        new = rewrite(old, text)
        if new is not old:
            clone = clone or copy.copy(value)
            object.__setattr__(clone, name, new)  # it may be frozen
    return clone or value


def clean_metadata(value: Any) -> Any:
    """Make metadata fit for a JSON column of either database."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {clean_metadata(key): clean_metadata(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_metadata(item) for item in value]
    return value
