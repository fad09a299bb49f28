"""What may be journaled, and its one encoding.

A value that a step made comes back equal in value and type, in any process and from
any database, or it is refused by `encode` with its path and a way out. Nothing is
pickled, and a stored name chooses a class only among those that the application
registered (`Types`).

The text is ASCII JSON. What JSON lacks is an object with the key "$":

    {"$": "tuple", "v": [1, 2]}                       one kind of value: _SCALARS, _READERS
    {"$": "dict", "v": [[key, value], ...]}           a dict that JSON would bend
    {"$": "message", "n": "AIMessage", "v": {...}}    LangChain's own classes: _BUILTIN
    {"$": "model", "n": "Ticket", "v": {...}}         a registered class: _CLASSES

Types are matched exactly: `numpy.float64` is a float to isinstance, and would come back
as another type. NUL and lone surrogates are escaped inside a "str", so the text holds
neither and every database keeps it.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
import typing
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property, partial
from math import isfinite
from typing import Any, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from langchain_core import messages as lc
from langchain_core.documents import Document
from langchain_core.messages.base import TextAccessor
from pydantic import BaseModel, RootModel, SecretBytes, SecretStr

from langgraph_durable.errors import BadInput, NotEncodable, StoreError, TooLarge

DEFAULT_LIMIT = 4 * 1024 * 1024  # bytes of encoded text
# One level of a value may be three levels of JSON, and json recurses: with 100 levels a
# value that was encoded can be decoded on any stack that ran the code that made it.
MAX_DEPTH = 100

C = TypeVar("C", bound=type)
Node = Any  # what json.dumps takes


class Types:
    """The application's classes that may be journaled, each under a stable name."""

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._by_class: dict[type, _Known] = {}
        self._by_name: dict[str, _Known] = {}
        self._read = json.JSONDecoder(object_hook=partial(_restore, self)).decode
        for cls in classes:
            self.register(cls)

    def register(self, cls: C, *, name: str | None = None) -> C:
        """Let instances of a pydantic model, dataclass, Enum or NamedTuple be journaled.

        Also usable as a decorator. Classes in the annotations of its fields come with it.
        A class may be registered again, also under a second name: values are written
        under its first name and read under each, which is how a class is renamed.

        Raises:
            BadInput: the class is of another kind, or its name belongs to another class.
        """
        if _kind(cls) is None:
            raise BadInput(
                f"{cls!r} can't be registered: the journal rebuilds pydantic models, "
                "dataclasses, Enums and NamedTuples. Return one of these instead."
            )
        self._add(cls, name or cls.__qualname__)
        self.discover(cls)
        return cls

    def discover(self, annotation: Any) -> None:
        """Register each model, dataclass, Enum and NamedTuple in an annotation.

        Takes what a graph's state schema is made of: TypedDicts, models, generics,
        unions, Annotated. LangChain's messages need no registration and are passed over.

        A class whose name is taken by another one goes by its full name.
        """
        for cls in _classes_in(annotation, set()):
            if cls not in self._by_class:
                taken = cls.__qualname__ in self._by_name
                self._add(
                    cls, f"{cls.__module__}.{cls.__qualname__}" if taken else cls.__qualname__
                )

    @property
    def classes(self) -> frozenset[type]:
        """The registered classes."""
        return frozenset(self._by_class)

    def _add(self, cls: type, name: str) -> None:
        known = self._by_name.setdefault(name, _Known(name, cls, _kind(cls) or ""))
        if known.cls is not cls:
            raise BadInput(
                f"the name {name!r} is taken by {known.cls.__module__}.{known.cls.__qualname__}, "
                f"so {cls.__module__}.{cls.__qualname__} needs another: "
                "types.register(cls, name=...) before it is used."
            )
        self._by_class.setdefault(cls, known)


class _Known(NamedTuple):
    name: str
    cls: type
    kind: str  # a key of _CLASSES


def encode(value: Any, *, types: Types, where: str, limit_bytes: int = DEFAULT_LIMIT) -> str:
    """Write a value as ASCII JSON that `decode` makes equal in value and type.

    `where` says in errors who made the value, e.g. "step 'classify'".

    Raises:
        NotEncodable: something in it would not come back the same; says path and way out.
        TooLarge: the text is longer than `limit_bytes`.
    """
    text = _text(value, _Encoder(types), where)
    if len(text) > limit_bytes:
        way_out = "Keep it in a file or an object store and return its address."
        raise TooLarge(f"the value of {where}", len(text), limit_bytes, way_out)
    return text


def decode(text: str, *, types: Types) -> Any:
    """Read what `encode` wrote.

    Raises:
        StoreError: it needs a class that isn't registered or has changed, or is damaged.
    """
    try:
        return types._read(text)
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(f"a recorded value can't be read: {error!r}") from error


def fingerprint(value: Any, *, types: Types, where: str = "the request") -> str:
    """Return the digest of a value: 32 hex digits, the same in every process.

    The order of dict keys and the ids that LangChain makes up for messages and content
    blocks don't count: a request built anew on replay is the same request.

    Raises:
        NotEncodable: the value can't be journaled either.
    """
    text = _text(value, _Encoder(types, canonical=True), where)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def readable(value: Any, limit: int = 200) -> str:
    """Return a short form for messages and people: at most `limit` characters; never raises."""
    try:
        text = clean_text(value if type(value) is str else _Short(limit).repr(value))
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else (text[: limit - 1] + "…" if limit > 0 else "")


def message_of(error: BaseException) -> str:
    """Return what an error says, fit for a plain column; never raises."""
    try:
        return clean_text(str(error))
    except Exception:
        return ""


def strict_json(text: str | bytes) -> Any:
    """Read JSON as the standard has it: Python's reader also takes NaN, and 1e400 for infinity.

    Raises:
        ValueError: it is none, or has a number that can't be kept as it was sent.
        RecursionError: it is nested too deep.
    """
    return json.loads(text, parse_constant=_no_constant, parse_float=_finite)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def clean_text(text: str) -> str:
    """Make a text fit for a plain column: NUL becomes ␀, a lone surrogate U+FFFD."""
    text = text.replace("\0", "\u2400")
    if _is_plain(text):
        return text
    # UTF-16 joins two halves that belong together and replaces only the lone ones
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class _Short(reprlib.Repr):
    """repr, cut early: a huge value isn't written out only to be thrown away."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 12
        self.maxstring = self.maxother = self.maxlong = max(limit, 8)

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, lc.BaseMessage):
            return f"{x.type}: {self.repr1(x.content, level - 1)}"
        return super().repr_instance(x, level)


# --- writing ---------------------------------------------------------------------------


class _Unkept(Exception):
    """Becomes NotEncodable; each container on the way out adds its step of the path."""

    def __init__(self, value: Any, way_out: str) -> None:
        self.kind, self.way_out, self.path = _type_name(type(value)), way_out, [""]


class _Encoder:
    """One walk over a value. `canonical` is for fingerprints; `checked`: see _write_class."""

    __slots__ = ("canonical", "checked", "depth", "types")

    def __init__(self, types: Types, *, canonical: bool = False, checked: bool = False) -> None:
        self.types, self.canonical, self.checked, self.depth = types, canonical, checked, 0

    def node(self, value: Any) -> Node:
        write = _WRITERS.get(type(value))
        if write is not None:
            return write(self, value)
        known = self.types._by_class.get(type(value))
        if known is None:
            raise _Unkept(value, _way_out(value))
        return _write_class(self, value, known)

    def enter(self, items: Any) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            way_out = f"It is over {MAX_DEPTH} levels deep, or holds itself. Flatten it."
            raise _Unkept(items, way_out)

    def nodes(self, items: Iterable[Any]) -> list[Node]:
        self.enter(items)
        out: list[Node] = []
        try:
            for item in items:
                out.append(self.node(item))  # noqa: PERF401  # len(out) is the index in the path
        except _Unkept as unkept:
            unkept.path.append(f"[{len(out)}]")
            raise
        self.depth -= 1
        return out


_to_json = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode
_to_sorted_json = json.JSONEncoder(
    allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=True
).encode


def _text(value: Any, encoder: _Encoder, where: str) -> str:
    try:
        node = encoder.node(value)
        return _to_sorted_json(node) if encoder.canonical else _to_json(node)
    except _Unkept as unkept:
        path = "$" + "".join(reversed(unkept.path))
        path = path if len(path) <= 200 else f"{path[:120]}…{path[-60:]}"
        raise NotEncodable(where, path, unkept.kind, unkept.way_out) from None
    except RecursionError:
        way_out = "It is nested too deep for the stack of this call. Flatten it."
        raise NotEncodable(where, "$", _type_name(type(value)), way_out) from None


def _is_plain(text: str) -> bool:
    """Tell whether JSON, every driver and every database keep this text as it is."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # a lone surrogate, or two that json.loads would join
            return False
    return "\0" not in text


def _escape(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


def _unescape(text: str) -> str:
    return text.encode("ascii").decode("unicode_escape")


def _write_same(_: _Encoder, value: Any) -> Node:
    return value


def _write_str(_: _Encoder, text: str) -> Node:
    return text if _is_plain(text) else {"$": "str", "v": _escape(text)}


def _write_int(_: _Encoder, number: int) -> Node:
    # within 64 bits as JSON; hex beyond: other readers keep no more, and Python
    # refuses to write or read more than 4,300 decimal digits
    return number if -(2**63) <= number < 2**63 else {"$": "int", "v": hex(number)}


def _write_float(_: _Encoder, number: float) -> Node:
    return number if isfinite(number) else {"$": "float", "v": repr(number)}


def _write_list(encoder: _Encoder, items: list[Any]) -> Node:
    return encoder.nodes(items)


def _write_tuple(encoder: _Encoder, items: tuple[Any, ...]) -> Node:
    return {"$": "tuple", "v": encoder.nodes(items)}


def _write_set(encoder: _Encoder, items: set[Any] | frozenset[Any]) -> Node:
    # sorted by what is written: the order of a set differs from process to process
    return {"$": type(items).__name__, "v": sorted(encoder.nodes(items), key=_to_sorted_json)}


def _write_dict(encoder: _Encoder, items: dict[Any, Any]) -> Node:
    if "$" in items:
        return _write_pairs(encoder, items)
    for key in items:
        if type(key) is not str or not _is_plain(key):
            return _write_pairs(encoder, items)
    encoder.enter(items)
    out = {}
    key = None
    try:
        for key, value in items.items():
            out[key] = encoder.node(value)
    except _Unkept as unkept:
        unkept.path.append(_path_step(key))
        raise
    encoder.depth -= 1
    return out


def _write_pairs(encoder: _Encoder, items: dict[Any, Any]) -> Node:
    pairs = []
    for key, value in items.items():
        try:
            pairs.append(encoder.nodes((key, value)))
        except _Unkept as unkept:
            is_key = unkept.path.pop() == "[0]"
            unkept.path.append(f"<key {readable(key, 40)}>" if is_key else _path_step(key))
            raise
    if encoder.canonical:
        pairs.sort(key=_to_sorted_json)
    return {"$": "dict", "v": pairs}


def _path_step(key: Any) -> str:
    return f".{key}" if type(key) is str and key.isidentifier() else f"[{readable(key, 40)!r}]"


def _write_builtin(encoder: _Encoder, item: Any) -> Node:
    """Write one of LangChain's own, field by field: model_dump would flatten what is inside."""
    cls, held = type(item), item.__dict__
    kept = {}
    for name, default in _BUILTIN[cls]:
        value = held.get(name, default)
        if type(value) is not type(default) or value != default:
            kept[name] = value
    if encoder.canonical and cls is not Document:
        kept.pop("id", None)
        if type(kept.get("content")) is list:
            kept["content"] = [_without_made_up_id(block) for block in kept["content"]]
    node = {"$": "message", "n": cls.__name__, "v": _write_dict(encoder, kept)}
    if item.__pydantic_extra__:
        node["x"] = _write_dict(encoder, item.__pydantic_extra__)
    return node


def _without_made_up_id(block: Any) -> Any:
    if type(block) is dict and str(block.get("id")).startswith("lc_"):
        return {name: value for name, value in block.items() if name != "id"}
    return block


def _write_class(encoder: _Encoder, value: Any, known: _Known) -> Node:
    """Write an instance of a registered class, having tried that it comes back the same.

    Its validators and constructor run when it is read, and may change or refuse it. That
    must come out now. The try covers all that is inside, so those below need none.
    """
    write, _ = _CLASSES[known.kind]
    if encoder.canonical or encoder.checked:
        return {"$": known.kind, "n": known.name, **write(encoder, value)}
    encoder.checked = True
    node = {"$": known.kind, "n": known.name, **write(encoder, value)}
    encoder.checked = False
    text = _to_json(node)
    try:
        again = _to_json(_Encoder(encoder.types, checked=True).node(encoder.types._read(text)))
    except Exception as error:
        why = readable(str(error.__cause__ or error), 300)
        raise _Unkept(value, f"Rebuilding it from its own fields fails: {why}") from error
    if again != text:
        raise _Unkept(
            value,
            "Rebuilding it from its own fields changes them: see its validators.",
        )
    return node


def _write_model(encoder: _Encoder, model: BaseModel) -> dict[str, Node]:
    names = type(model).model_fields
    held = model.__dict__
    out = {"v": _write_dict(encoder, {name: held[name] for name in names if name in held})}
    unset = sorted(names.keys() - model.model_fields_set)  # model_dump(exclude_unset=True) asks
    if unset and not encoder.canonical:
        out["u"] = unset
    if model.__pydantic_extra__:
        out["x"] = _write_dict(encoder, model.__pydantic_extra__)
    if model.__pydantic_private__:
        out["p"] = _write_dict(encoder, dict(sorted(model.__pydantic_private__.items())))
    return out


def _read_model(cls: type[BaseModel], node: dict[str, Any]) -> BaseModel:
    if issubclass(cls, RootModel):
        model: BaseModel = cls.model_validate(node["v"]["root"])
    else:
        values = {**node["v"], **node.get("x", {})}
        model = cls.model_validate(values, by_alias=False, by_name=True)
    model.model_fields_set.difference_update(node.get("u", ()))
    if model.__pydantic_private__ is not None:
        model.__pydantic_private__.update(node.get("p", {}))
    return model


def _write_dataclass(encoder: _Encoder, item: Any) -> dict[str, Node]:
    names = [field.name for field in fields(item)]
    for name in sorted(getattr(item, "__dict__", {})):
        cached = isinstance(getattr(type(item), name, None), cached_property)
        if name not in names and not cached and name != "__orig_class__":
            names.append(name)
    held = {name: getattr(item, name) for name in names if hasattr(item, name)}
    return {"v": _write_dict(encoder, held)}


def _read_dataclass(cls: type, node: dict[str, Any]) -> Any:
    held: dict[str, Any] = node["v"]
    made = cls(**{field.name: held[field.name] for field in fields(cls) if field.init})
    for name, value in held.items():  # also what __post_init__ derived, or changed
        object.__setattr__(made, name, value)
    return made


def _write_named(encoder: _Encoder, item: Any) -> dict[str, Node]:
    if getattr(item, "__dict__", None):
        raise _Unkept(item, "It has attributes beside its fields, which a tuple doesn't keep.")
    return {"v": encoder.nodes(item)}


def _write_enum(encoder: _Encoder, member: Enum) -> dict[str, Node]:
    if member.name in type(member).__members__:
        return {"v": member.name}
    return {"f": encoder.node(member.value)}  # several flags in one


def _read_enum(cls: type[Enum], node: dict[str, Any]) -> Enum:
    return cls[node["v"]] if "v" in node else cls(node["f"])


# --- the kinds -------------------------------------------------------------------------


def _write_zone(moment: datetime | time) -> list[Any]:
    zone = moment.tzinfo
    if type(zone) is ZoneInfo and zone.key:
        return [zone.key]
    if type(zone) is timezone:
        offset, name = zone.utcoffset(None), zone.tzname(None)
        numbers = _write_span(offset)
        return numbers if name == timezone(offset).tzname(None) else [*numbers, _escape(name)]
    if zone is not None:
        raise _Unkept(moment, f"Its tzinfo is a {_type_name(type(zone))}: use zoneinfo or UTC.")
    return []


def _read_zone(zone: list[Any]) -> ZoneInfo | timezone | None:
    if len(zone) < 2:
        return ZoneInfo(zone[0]) if zone else None
    offset = timedelta(*zone[:3])
    return timezone(offset, _unescape(zone[3])) if len(zone) > 3 else timezone(offset)


def _write_moment(moment: datetime | time) -> list[Any]:
    return [moment.replace(tzinfo=None).isoformat(), moment.fold, _write_zone(moment)]


def _read_moment(cls: Any, parts: list[Any]) -> Any:
    text, fold, zone = parts
    return cls.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))


def _write_span(span: timedelta) -> list[int]:
    return [span.days, span.seconds, span.microseconds]


def _write_bytes(data: bytes | bytearray) -> str:
    return b64encode(data).decode("ascii")


def _write_fraction(number: Fraction) -> list[str]:
    return [hex(number.numerator), hex(number.denominator)]


#: type -> its tag, how it becomes JSON, and back
_SCALARS: Mapping[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", _write_bytes, b64decode),
    bytearray: ("bytearray", _write_bytes, lambda text: bytearray(b64decode(text))),
    complex: ("complex", lambda z: [repr(z.real), repr(z.imag)], lambda v: complex(*map(float, v))),
    Decimal: ("decimal", str, Decimal),
    Fraction: ("fraction", _write_fraction, lambda v: Fraction(*(int(n, 16) for n in v))),
    UUID: ("uuid", str, UUID),
    date: ("date", date.isoformat, date.fromisoformat),
    datetime: ("datetime", _write_moment, partial(_read_moment, datetime)),
    time: ("time", _write_moment, partial(_read_moment, time)),
    timedelta: ("timedelta", _write_span, lambda v: timedelta(*v)),
    TextAccessor: ("text", _escape, lambda v: TextAccessor(_unescape(v))),  # message.text
}

_MISSING = object()


def _defaults(cls: type[BaseModel]) -> list[tuple[str, Any]]:
    return [
        (name, _MISSING if field.is_required() else field.get_default(call_default_factory=True))
        for name, field in cls.model_fields.items()
    ]


_BUILTIN_CLASSES: tuple[type[BaseModel], ...] = (
    lc.AIMessage, lc.AIMessageChunk, lc.ChatMessage, lc.ChatMessageChunk, lc.FunctionMessage,
    lc.FunctionMessageChunk, lc.HumanMessage, lc.HumanMessageChunk, lc.RemoveMessage,
    lc.SystemMessage, lc.SystemMessageChunk, lc.ToolMessage, lc.ToolMessageChunk,
    Document,
)  # fmt: skip
#: LangChain's own classes -> their fields and defaults
_BUILTIN = {cls: _defaults(cls) for cls in _BUILTIN_CLASSES}
_BUILTIN_NAMES = {cls.__name__: cls for cls in _BUILTIN}


def _scalar(tag: str, write: Callable[[Any], Any]) -> Callable[[_Encoder, Any], Node]:
    return lambda _, value: {"$": tag, "v": write(value)}


_WRITERS: Mapping[type, Callable[[_Encoder, Any], Node]] = {
    type(None): _write_same,
    bool: _write_same,
    int: _write_int,
    float: _write_float,
    str: _write_str,
    list: _write_list,
    tuple: _write_tuple,
    set: _write_set,
    frozenset: _write_set,
    dict: _write_dict,
    **{cls: _scalar(tag, write) for cls, (tag, write, _) in _SCALARS.items()},
    **dict.fromkeys(_BUILTIN_CLASSES, _write_builtin),
}
_READERS: Mapping[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "str": _unescape,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    **{tag: read for tag, _, read in _SCALARS.values()},
}
#: kind of registered class -> its writer and reader
_CLASSES: Mapping[str, tuple[Callable[[_Encoder, Any], dict[str, Node]], Callable[..., Any]]] = {
    "model": (_write_model, _read_model),
    "dataclass": (_write_dataclass, _read_dataclass),
    "enum": (_write_enum, _read_enum),
    "namedtuple": (_write_named, lambda cls, node: cls._make(node["v"])),
}


def _restore(types: Types, node: dict[str, Any]) -> Any:
    """Turn one JSON object into its value; json calls it from the inside out."""
    tag = node.get("$")
    if tag is None:
        return node
    read = _READERS.get(tag)
    if read is not None:
        return read(node["v"])
    if tag == "message":
        return _read_builtin(node)
    if tag not in _CLASSES:
        raise StoreError(f"a recorded value has the unknown kind {tag!r}: newer code wrote it")
    known = types._by_name.get(node["n"])
    if known is None or known.kind != tag:
        raise StoreError(
            f"a recorded value needs the {tag} class {node['n']!r}, which is not registered here. "
            "Register it: Durable(..., types=[...]), or types.register(cls, name=...) if renamed."
        )
    try:
        return _CLASSES[tag][1](known.cls, node)
    except Exception as error:
        raise StoreError(f"a recorded {known.name!r} does not fit its class: {error}") from error


def _read_builtin(node: dict[str, Any]) -> Any:
    cls = _BUILTIN_NAMES.get(node["n"])
    if cls is None:
        raise StoreError(f"a recorded message has the unknown class {node['n']!r}")
    held = node["v"]
    given = set(held)
    for name, default in _BUILTIN[cls]:  # pydantic would find each default in 50 µs
        if name not in held and default is not _MISSING:
            held[name] = default.copy() if type(default) in (list, dict) else default
    # not the constructor: it parses tool calls anew and would not keep each as it was
    item = cls.model_construct(given, **held)
    if "x" in node:
        item.__pydantic_extra__ = node["x"]
    return item


# --- which classes, and the way out ----------------------------------------------------


def _kind(cls: type) -> str | None:
    if issubclass(cls, Enum):
        return "enum" if cls.__members__ else None
    if issubclass(cls, BaseModel):
        return None if cls is BaseModel else "model"
    if is_dataclass(cls):
        return "dataclass"
    return "namedtuple" if issubclass(cls, tuple) and hasattr(cls, "_fields") else None


def _classes_in(annotation: Any, seen: set[Any]) -> Iterator[type]:
    inside: Iterable[Any]
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        if annotation in seen or issubclass(annotation, (lc.BaseMessage, Document)):
            return
        seen.add(annotation)
        if _kind(annotation):
            yield annotation
        inside = _annotations_of(annotation)
    elif hasattr(annotation, "__value__"):  # type X = ..., which may name itself
        inside = () if annotation in seen else (annotation.__value__,)
        seen.add(annotation)
    else:
        inside = (typing.get_origin(annotation), *typing.get_args(annotation))
    for part in inside:
        if part is not None:
            yield from _classes_in(part, seen)


def _annotations_of(cls: type) -> Iterable[Any]:
    if issubclass(cls, BaseModel):
        return [field.annotation for field in cls.model_fields.values()]
    if is_dataclass(cls) or hasattr(cls, "__total__") or hasattr(cls, "_fields"):
        try:
            return typing.get_type_hints(cls, include_extras=True).values()
        except (NameError, TypeError):  # names that exist only for the type checker
            return ()
    return ()


def _type_name(cls: type) -> str:
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )


_WAYS_OUT: tuple[tuple[Any, str], ...] = (
    (
        (SecretStr, SecretBytes),
        "A secret is never stored. Read it where it is used, with ctx.secret(name), and keep its "
        "name instead.",
    ),
    (Awaitable, "Await it first."),
    (Iterator, "Make a list of it first."),
    (BaseException, "Keep its text: str(error)."),
)


def _way_out(value: Any) -> str:
    cls = type(value)
    if cls.__module__.partition(".")[0] == "numpy":
        return (
            "Convert it: .tolist() of an array."
            if cls.__name__ == "ndarray"
            else "Convert it: .item()."
        )
    if cls.__module__ == "langgraph.types":
        return "It steers the graph: return it from the node, not from a step or in a value."
    if isinstance(value, lc.BaseMessage):
        return "Convert it to one of LangChain's own messages, e.g. AIMessage(content=...)."
    if _kind(cls):
        return f"Register its class: Durable(..., types=[{cls.__name__}])."
    for base in (str, int, float, bytes, dict, list, tuple, set, frozenset, datetime, date):
        if isinstance(value, base):
            return (
                f"It is a subclass of {base.__name__} and would come back as one: convert it first."
            )
    for kind, way_out in _WAYS_OUT:
        if isinstance(value, kind):
            return way_out
    return "Return plain data, or a registered pydantic model, dataclass, Enum or NamedTuple."
