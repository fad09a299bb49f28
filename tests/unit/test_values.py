"""What may be journaled comes back equal in value and type, or is refused at once."""

from __future__ import annotations

import collections
import functools
import os
import subprocess
import sys
import textwrap
import typing
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolCallChunk,
    ToolMessage,
)
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, field_validator

from langgraph_durable.errors import BadInput, NotEncodable, StoreError, TooLarge
from langgraph_durable.runs import Refused
from langgraph_durable.values import (
    MAX_DEPTH,
    Types,
    clean_text,
    decode,
    encode,
    fingerprint,
    readable,
)


class Colour(Enum):
    RED = "red"
    BLUE = ("b", 1)


class Size(StrEnum):
    SMALL = "small"


class Level(IntEnum):
    LOW = 1


class Right(Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: Any


@dataclass
class Order:
    id: str
    lines: list[Any]
    total: Decimal = Decimal("0.00")


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    cents: int
    note: Any = None


@dataclass
class Derived:
    base: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        self.double = self.base * 2
        self.hidden = [self.base]

    @functools.cached_property
    def lock(self) -> Any:
        return object()


class Item(BaseModel):
    sku: str
    price: Decimal
    at: datetime | None = None


class Ticket(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=False)
    title: str = Field(alias="Title")
    items: list[Item] = []
    anything: Any = None
    tag: Size = Size.SMALL
    secret: str = Field(default="s", exclude=True)


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 1
    _seen: int = PrivateAttr(0)


class Names(RootModel[list[str]]):
    pass


T_ = TypeVar("T_")


class Box(BaseModel, Generic[T_]):
    inside: T_


CLASSES = [
    Colour, Size, Level, Right, Point, Order, Money, Derived, Ticket, Loose, Names, Box[int],
    Refused,
]  # fmt: skip
TYPES = Types(CLASSES)


def there_and_back(value: Any, types: Types = TYPES) -> Any:
    text = encode(value, types=types, where="step 'x'", limit_bytes=10**9)
    assert text.isascii()
    assert "\0" not in text
    assert "\\u0000" not in text.replace(r"\\", "")
    return decode(text, types=types)


def same(a: Any, b: Any) -> bool:
    """Equal in value and type, all the way down; NaN equals NaN, -0.0 isn't 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k, j) and same(v, w) for (k, v), (j, w) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (set, frozenset)):
        return sorted(map(repr, a)) == sorted(map(repr, b))
    if isinstance(a, BaseModel):
        return all(
            same(getattr(a, part), getattr(b, part))
            for part in ("__pydantic_extra__", "__pydantic_private__")
        ) and all(same(a.__dict__[n], b.__dict__[n]) for n in type(a).model_fields)
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, datetime | time):
        return repr(a) == repr(b) and same_zone(a.tzinfo, b.tzinfo)
    return repr(a) == repr(b)


def same_zone(a: tzinfo | None, b: tzinfo | None) -> bool:
    return type(a) is type(b) and repr(a) == repr(b)


# --- round trips -----------------------------------------------------------------------

ZONES = st.one_of(
    st.none(),
    st.just(UTC),
    st.sampled_from(["Europe/Berlin", "Asia/Shanghai", "America/New_York"]).map(ZoneInfo),
    st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone),
    st.builds(
        timezone, st.just(timedelta(hours=1, microseconds=7)), st.sampled_from(["X", "\ud83d"])
    ),
)
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    ANY_TEXT,
    st.sampled_from(
        ["$", "v", "a\0b", "a\ud83d", "\ud83d\ude00", "\U0001f600", "\\u0000", "\\ud83d"]
    ),
    st.binary(max_size=8),
    st.decimals(),
    st.sampled_from(["sNaN", "-0", "0E+3", "1.10", "NaN123", "-Infinity", "1E+999999"]).map(
        Decimal
    ),
    st.fractions(),
    st.complex_numbers(),
    st.uuids(),
    st.datetimes(timezones=ZONES, allow_imaginary=True),
    st.times(),
    st.dates(),
    st.timedeltas(),
    st.sampled_from([*Colour, *Size, *Level, *Right, Right.READ | Right.WRITE, Right(0)]),
)
KEYS = st.one_of(
    ANY_TEXT, st.integers(), st.booleans(), st.none(), st.uuids(), st.floats(allow_nan=False),
    st.sampled_from([*Colour, *Size, *Level, "$"]), st.tuples(ANY_TEXT, st.integers()), st.dates(),
)  # fmt: skip
HASHABLE = st.one_of(
    ANY_TEXT, st.integers(2), st.none(), st.binary(), st.uuids(), st.tuples(ANY_TEXT)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        st.builds(Point, st.integers(), inner),
        st.builds(Order, ANY_TEXT, st.lists(inner, max_size=2)),
        st.builds(Money, cents=st.integers(), note=inner),
        st.builds(lambda v: Ticket(Title="t", anything=v), inner),
        st.builds(lambda v: ToolMessage("ok", tool_call_id="1", artifact=v), inner),
        st.sets(HASHABLE, max_size=4),
        st.frozensets(HASHABLE, max_size=4),
        st.binary(max_size=4).map(bytearray),
    ),
    max_leaves=12,
)


@pytest.mark.promise("H-13")
@pytest.mark.promise("H-14")
@settings(max_examples=400, deadline=None)
@given(VALUES)
def test_a_value_comes_back_equal_in_value_and_type(value: Any) -> None:
    """H-13, H-14: NUL, half-emoji, NaN, 2**70, Decimal, in any place, also as a key."""
    assert same(there_and_back(value), value)


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_what_came_back_is_written_as_the_same_text(value: Any) -> None:
    text = encode(value, types=TYPES, where="w")
    assert encode(decode(text, types=TYPES), types=TYPES, where="w") == text


@pytest.mark.promise("H-14")
@pytest.mark.parametrize(
    "number",
    [
        2**70,
        -(2**70),
        10**5000,
        2**63,
        -(2**63),
        float("inf"),
        float("-inf"),
        -0.0,
        1.0,
        1,
        True,
        Decimal("0.10"),
        Decimal("1E+3"),
        5e-324,
        Fraction(1, 3),
        complex(-0.0, float("inf")),
    ],
    ids=lambda number: type(number).__name__,  # str of the long one is what Python refuses
)
def test_numbers_that_json_bends_come_back_as_they_were(number: Any) -> None:
    """H-14: no failure only on replay, and none only on PostgreSQL."""
    back = there_and_back({"n": number})["n"]
    assert type(back) is type(number)
    assert back == number
    if type(number) is not int:
        assert repr(back) == repr(number)


@pytest.mark.promise("H-14")
def test_nan_comes_back_as_nan() -> None:
    """H-14."""
    back = there_and_back([float("nan"), Decimal("NaN"), Decimal("sNaN")])
    assert repr(back) == "[nan, Decimal('NaN'), Decimal('sNaN')]"


@pytest.mark.promise("H-13")
@pytest.mark.parametrize("text", ["a\0b", "a\ud83d", "\ude00", "\ud83d\ude00", "\0", "\ud83d\0\\x"])
def test_nul_and_half_emoji_round_trip_as_value_and_as_key(text: str) -> None:
    """H-13: and the text that the database gets holds neither, escaped or not."""
    value = {text: [text], "deep": {"er": (text,)}}
    assert same(there_and_back(value), value)
    assert "\\ud83d" not in encode({text: text}, types=TYPES, where="w").replace("\\\\", "")


def test_fold_and_zone_of_a_time_are_kept() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    twice = datetime(2024, 10, 27, 2, 30, tzinfo=berlin, fold=1)
    back = there_and_back(twice)
    assert (back.fold, back.tzinfo, back.utcoffset()) == (1, berlin, timedelta(hours=1))
    assert there_and_back(time(2, 30, fold=1, tzinfo=UTC)).fold == 1
    named = there_and_back(datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")))
    assert named.tzname() == "CET"


def test_the_order_of_a_dict_is_kept_and_the_order_of_a_set_does_not_matter() -> None:
    assert list(there_and_back({"b": 1, "a": 2, 3: 4})) == ["b", "a", 3]
    one, other = {"a", "b", "c", 1}, {1, "c", "b", "a"}
    assert encode(one, types=TYPES, where="w") == encode(other, types=TYPES, where="w")


@pytest.mark.parametrize(
    "value",
    [{"$": "uuid", "v": "x"}, {"$": 1}, {"$": "model", "n": "Ticket", "v": {}}, {1: {"$": "dict"}}],
)
def test_a_dict_that_looks_like_our_envelope_stays_a_dict(value: Any) -> None:
    assert same(there_and_back(value), value)


def test_a_langchain_shaped_dict_stays_a_dict() -> None:
    value = {"lc": 1, "type": "constructor", "id": ["langchain", "x"], "kwargs": {}}
    assert same(there_and_back(value), value)


def test_the_text_is_plain_json_for_plain_data() -> None:
    assert encode({"a": [1, None, "é"]}, types=TYPES, where="w") == '{"a":[1,null,"\\u00e9"]}'


# --- messages --------------------------------------------------------------------------

CALL = {"name": "pay", "args": {"cents": 2**70, "x": {"$": 1}}, "id": "c1", "type": "tool_call"}
OPENAI_CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
CHUNK: ToolCallChunk = {"name": "f", "args": "{", "id": "1", "index": 0}
MESSAGES = [
    AIMessage("hi"),
    AIMessage(
        [{"type": "text", "text": "a\0b", "index": 0}, "plain"],
        tool_calls=[CALL],
        invalid_tool_calls=[{"name": "x", "args": "{", "id": None, "error": "bad"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        additional_kwargs={"refusal": None, "at": datetime(2024, 1, 1)},
        response_metadata={"logprobs": (1.5, float("inf"))},
        id="run-1",
        name="bot",
        example=True,
    ),
    AIMessage("", additional_kwargs={"tool_calls": [OPENAI_CALL]}),
    AIMessageChunk(content="par", tool_call_chunks=[CHUNK], chunk_position="last"),
    HumanMessage([{"type": "image", "url": "http://x"}], id="m1"),
    SystemMessage("be kind\ud83d"),
    ToolMessage("done", tool_call_id="c1", artifact=Order("1", [Money(cents=1)]), status="error"),
    ToolMessage("done", tool_call_id="c1", artifact={"raw": b"\0", "t": (1,)}),
    ChatMessage(content="x", role="critic"),
    FunctionMessage(content="x", name="f"),
    RemoveMessage("m1"),
    Document("text", metadata={"page": 1, "seen": {1}}, id="d1"),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_comes_back_with_all_that_it_holds(message: Any) -> None:
    back = there_and_back([message])[0]
    assert same(back, message)
    assert back == message


def test_defaults_are_not_shared_between_messages() -> None:
    there_and_back(AIMessage("hi")).additional_kwargs["mine"] = 1
    assert there_and_back(AIMessage("hi")).additional_kwargs == {}


def test_a_tool_call_that_the_constructor_would_drop_a_part_of_is_kept() -> None:
    message = AIMessage("", tool_calls=[CALL])
    extended: Any = message.tool_calls[0]
    extended["extras"] = {"signature": "abc"}  # as providers do
    assert there_and_back(message).tool_calls[0]["extras"] == {"signature": "abc"}


def test_the_text_of_a_message_is_a_value_too() -> None:
    text = AIMessage("billing").text
    assert same(there_and_back({"category": text}), {"category": text})


def test_an_artifact_of_an_unregistered_class_is_refused_not_flattened() -> None:
    class Report(BaseModel):
        rows: int

    with pytest.raises(NotEncodable) as refused:
        encode(
            [ToolMessage("x", tool_call_id="1", artifact=Report(rows=1))],
            types=TYPES,
            where="step 'r'",
        )
    assert refused.value.path == "$[0].artifact"
    assert "Report" in str(refused.value)
    assert "types=[Report]" in str(refused.value)


def test_a_message_of_a_class_of_ones_own_is_refused() -> None:
    class Mine(AIMessage):
        pass

    with pytest.raises(NotEncodable, match="LangChain's own messages"):
        encode(Mine(content="x"), types=TYPES, where="w")


# --- registered classes ----------------------------------------------------------------


def test_a_model_is_rebuilt_by_its_validator_with_all_its_parts() -> None:
    ticket = Ticket(
        Title="t", items=[Item(sku="a", price=Decimal("1.10"))], anything={"x": (1,)}, secret="z"
    )
    back = there_and_back(ticket)
    assert same(back, ticket)
    assert back.model_fields_set == ticket.model_fields_set
    assert same(there_and_back(Names(["a"])), Names(["a"]))
    assert same(there_and_back(Box[int](inside=2)), Box[int](inside=2))


def test_extra_and_private_parts_of_a_model_are_kept() -> None:
    loose = Loose(a=2, more={"$": 1})  # type: ignore[call-arg]
    loose._seen = 7
    back = there_and_back(loose)
    assert back == loose
    assert (back._seen, back.more) == (7, {"$": 1})


def test_a_dataclass_keeps_what_its_constructor_does_not_take() -> None:
    made = Derived(2)
    made.double = 99
    assert made.lock
    back = there_and_back(made)
    assert (back.double, back.hidden) == (99, [2])
    assert there_and_back(Refused("no", by="mei")) == Refused("no", by="mei")


def test_a_validator_that_changes_its_field_is_found_when_it_is_written() -> None:
    types = Types()

    @types.register
    class Hashed(BaseModel):
        password: str

        @field_validator("password")
        @classmethod
        def hide(cls, value: str) -> str:
            return "#" + value

    with pytest.raises(NotEncodable, match="changes them") as refused:
        encode({"a": [Hashed(password="x")]}, types=types, where="step 'login'")
    assert refused.value.path == "$.a[0]"


def test_a_model_that_was_never_valid_is_found_when_it_is_written() -> None:
    with pytest.raises(NotEncodable, match="fails"):
        encode(Item.model_construct(sku=1), types=TYPES, where="w")
    with pytest.raises(NotEncodable, match="changes them"):  # would come back as Decimal
        encode(Item.model_construct(sku="a", price=1), types=TYPES, where="w")


def test_a_dataclass_whose_constructor_needs_more_is_refused() -> None:
    @dataclass
    class Keyed:
        key: InitVar[str]
        n: int = 0

    with pytest.raises(NotEncodable, match="fails"):
        encode(Keyed("k"), types=Types([Keyed]), where="w")


def test_classes_in_the_fields_of_a_registered_class_come_with_it() -> None:
    class Leaf(BaseModel):
        n: int

    class Tree(BaseModel):
        leaves: dict[str, list[Leaf | None]]

    tree = Tree(leaves={"a": [Leaf(n=1), None]})
    assert there_and_back(tree, Types([Tree])) == tree


def test_discover_finds_the_classes_of_a_graph_state() -> None:
    types = Types()
    types.discover(State)
    value = {
        "messages": [HumanMessage("x")],
        "ticket": Ticket(Title="t", items=[Item(sku="a", price=Decimal(1))]),
        "part": {"orders": (Order("1", []),)},
    }
    assert same(there_and_back(value, types), value)
    assert there_and_back(Colour.RED, types) is Colour.RED
    types.discover(typing.Optional[Money])  # noqa: UP045
    types.discover(State)
    assert there_and_back(Money(cents=1), types) == Money(cents=1)


class Part(TypedDict):
    orders: tuple[Order, ...]
    again: NotRequired[Part]


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    ticket: Ticket | None
    part: Annotated[Part, lambda a, b: b]
    by_colour: dict[Colour, list[int]]


# --- names -----------------------------------------------------------------------------


def test_a_stored_name_chooses_only_among_registered_classes() -> None:
    """No class is imported by a name in the data, however it is spelt."""
    for name in ("Item", "os.system", "builtins.eval", "langgraph_durable.runs.Refused"):
        for kind in ("model", "dataclass", "enum", "namedtuple"):
            with pytest.raises(StoreError, match=r"Register it: Durable\(\.\.\., types="):
                decode(f'{{"$":"{kind}","n":"{name}","v":{{}}}}', types=Types())


@pytest.mark.parametrize(
    "text",
    [
        '{"$":"pickle","v":"gASV"}',
        '{"$":"message","n":"Evil","v":{}}',
        '{"$":"uuid"}',
        "{",
        "",
        '{"$":"uuid","v":"x"}',
        '{"$":["a"]}',
        '{"$":"model","v":{}}',
        '{"$":"datetime","v":["2024-01-01",0,["No/Where"]]}',
    ],
)
def test_a_damaged_or_newer_text_is_a_store_error(text: str) -> None:
    with pytest.raises(StoreError):
        decode(text, types=TYPES)


def test_a_class_that_changed_since_is_named() -> None:
    def version(annotations: dict[str, Any]) -> type:
        return type("Note", (BaseModel,), {"__annotations__": annotations, "__qualname__": "Note"})

    old, new = version({"a": int}), version({"b": int})
    text = encode(old(a=1), types=Types([old]), where="w")
    with pytest.raises(StoreError, match="'Note' does not fit its class"):
        decode(text, types=Types([new]))


def test_two_classes_under_one_name_are_refused_and_one_class_twice_is_not() -> None:
    types = Types([Item])
    assert types.register(Item) is Item
    other = type("Item", (BaseModel,), {"__annotations__": {"a": int}, "__qualname__": "Item"})
    with pytest.raises(BadInput, match=r"taken by .*Item"):
        types.register(other)
    types.register(other, name="other.Item")
    assert there_and_back(other(a=1), types) == other(a=1)


def test_a_renamed_class_is_read_under_its_old_name() -> None:
    text = encode(Item(sku="a", price=Decimal(1)), types=Types([Item]), where="w")
    renamed = type("Product", (Item,), {"__qualname__": "Product", "__module__": __name__})
    types = Types([renamed])
    types.register(renamed, name="Item")
    assert type(decode(text, types=types)) is renamed


@pytest.mark.parametrize("cls", [int, object, dict, BaseModel, Enum, Part])
def test_only_classes_that_can_be_rebuilt_are_registered(cls: type) -> None:
    with pytest.raises(BadInput, match="can't be registered"):
        Types().register(cls)


# --- refused ---------------------------------------------------------------------------


class Text(str):
    pass


class Plain:
    pass


class Unregistered(Enum):
    A = 1


class Pair(NamedTuple):
    x: int


class Offset(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta:
        return timedelta(0)

    dst = utcoffset

    def tzname(self, dt: datetime | None) -> str:
        return "mine"


async def later() -> None: ...


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def cycle(kind: str) -> Any:
    items: list[Any] = []
    box: dict[Any, Any] = {"items": items} if kind == "dict" else {1: items}
    items.append(items if kind == "list" else box)
    return items


REFUSED: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: np.float64(1.5), "numpy.float64", r"\.item\(\)"),
    (lambda: np.int64(1), "numpy.int64", r"\.item\(\)"),
    (lambda: np.bool_(True), "numpy.bool", r"\.item\(\)"),
    (lambda: np.str_("x"), "numpy.str_", r"\.item\(\)"),
    (lambda: np.zeros(2), "numpy.ndarray", r"\.tolist\(\)"),
    (lambda: Text("x"), "Text", "subclass of str"),
    (lambda: collections.OrderedDict(), "OrderedDict", "subclass of dict"),
    (lambda: collections.defaultdict(list), "defaultdict", "subclass of dict"),
    (lambda: collections.Counter("a"), "Counter", "subclass of dict"),
    (lambda: collections.deque([1]), "deque", "plain data"),
    (lambda: Pair(1), "Pair", r"types=\[Pair\]"),
    (lambda: Unregistered.A, "Unregistered", r"types=\[Unregistered\]"),
    (Plain, "Plain", "plain data"),
    (lambda: Plain, "type", "plain data"),
    (lambda: print, "builtin_function_or_method", "plain data"),
    (lambda: memoryview(b"x"), "memoryview", "plain data"),
    (lambda: range(3), "range", "plain data"),
    (lambda: iter([1]), "list_iterator", "list"),
    (lambda: ValueError("x"), "ValueError", r"str\(error\)"),
    (lambda: Path("x"), "PosixPath", "plain data"),
    (lambda: datetime(2024, 1, 1, tzinfo=Offset()), "datetime", "zoneinfo"),
    (lambda: Send("node", {}), "langgraph.types.Send", "steers the graph"),
    (lambda: Command(goto="x"), "langgraph.types.Command", "steers the graph"),
    (lambda: deep(MAX_DEPTH + 1), "list", "levels deep"),
    (lambda: deep(100_000), "list", "levels deep"),
    (lambda: cycle("list"), "list", "holds itself"),
    (lambda: cycle("dict"), "dict|list", "holds itself"),
    (lambda: cycle("pairs"), "tuple|list", "holds itself"),
]


@pytest.mark.promise("H-14")
@pytest.mark.parametrize(("make", "kind", "way_out"), REFUSED)
def test_what_would_not_come_back_is_refused_at_once(make: Any, kind: str, way_out: str) -> None:
    """H-14: the first call fails, naming the step, the path, the type and a way out."""
    value = {"a": [0, {"my key": make()}]}
    with pytest.raises(NotEncodable, match=way_out) as refused:
        encode(value, types=TYPES, where="step 'price'")
    assert str(refused.value).startswith("step 'price': the value at $.a[1]['my key']")
    assert any(k in refused.value.kind for k in kind.split("|"))
    assert len(str(refused.value)) < 600
    with pytest.raises(NotEncodable):
        fingerprint(value, types=TYPES)


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_coroutine_somebody_forgot_to_await_is_named() -> None:
    work = later()
    with pytest.raises(NotEncodable, match="Await it first"):
        encode({"x": work}, types=TYPES, where="w")
    work.close()


def test_a_key_that_can_not_be_kept_is_named() -> None:
    with pytest.raises(NotEncodable) as refused:
        encode({"a": {Text("k"): 1}}, types=TYPES, where="w")
    assert refused.value.path == "$.a<key 'k'>"
    with pytest.raises(NotEncodable) as refused:
        encode({"a": {1: Plain()}}, types=TYPES, where="w")
    assert refused.value.path == "$.a['1']"


def test_a_part_of_a_registered_class_is_named_by_its_path() -> None:
    with pytest.raises(NotEncodable) as refused:
        encode(Order("1", [Money(cents=1, note=Plain())]), types=TYPES, where="w")
    assert refused.value.path == "$.lines[0].note"


def test_the_deepest_allowed_value_comes_back() -> None:
    assert there_and_back(deep(MAX_DEPTH)) == deep(MAX_DEPTH)
    nested: Any = 1
    for _ in range(MAX_DEPTH - 1):
        nested = {1: nested}
    assert there_and_back(nested) == nested


def test_a_value_over_its_limit_says_size_limit_and_a_way_out() -> None:
    with pytest.raises(
        TooLarge, match="step 'fetch' is 1,002 bytes; the limit is 1,000"
    ) as refused:
        encode("x" * 1000, types=TYPES, where="step 'fetch'", limit_bytes=1000)
    assert (refused.value.size, refused.value.limit) == (1002, 1000)
    assert "object store" in str(refused.value)
    encode("x" * 998, types=TYPES, where="step 'fetch'", limit_bytes=1000)


# --- fingerprints ----------------------------------------------------------------------


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    script = textwrap.dedent("""
        from datetime import date
        from langchain_core.messages import HumanMessage
        from langgraph_durable.values import Types, fingerprint
        value = {"b": {"x", "y", "z", 1, (2, "q")}, 3: None}
        value["a"] = [HumanMessage("hi"), date(2024, 1, 1)]
        print(fingerprint(value, types=Types()))
    """)

    def run(seed: str) -> str:
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    prints = {run("1"), run("2")}
    value = {
        3: None,
        "a": [HumanMessage("hi"), date(2024, 1, 1)],
        "b": {1, (2, "q"), "z", "y", "x"},
    }
    assert prints == {fingerprint(value, types=TYPES)}
    assert len(prints.pop()) == 32


def test_the_order_of_keys_and_made_up_message_ids_do_not_count() -> None:
    def of(value: Any) -> str:
        return fingerprint(value, types=TYPES)

    assert of({"a": 1, "b": {"c": 1, "d": 2}}) == of({"b": {"d": 2, "c": 1}, "a": 1})
    assert of({1: "x", "y": 2}) == of({"y": 2, 1: "x"})
    assert (
        of([HumanMessage("hi", id="1")])
        == of([HumanMessage("hi", id="2")])
        == of([HumanMessage("hi")])
    )
    block = {"type": "text", "text": "hi"}
    assert of(HumanMessage([{**block, "id": "lc_1"}])) == of(
        HumanMessage([{**block, "id": "lc_2"}])
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0), (1, True), ("1", 1), ([1], (1,)), (None, "None"), ({"id": "1"}, {"id": "2"}),
        ([1, 2], [2, 1]), ({"a": 1}, {"a": 2}), ({1: 2}, {"1": 2}), (b"x", "x"),
        ({1}, frozenset({1})),
        (HumanMessage("a"), HumanMessage("b")), (HumanMessage("a"), SystemMessage("a")),
        (ToolMessage("a", tool_call_id="1"), ToolMessage("a", tool_call_id="2")),
        (Document("a", id="1"), Document("a", id="2")), (Money(cents=1), Money(cents=2)),
    ],
)  # fmt: skip
def test_different_requests_have_different_fingerprints(one: Any, other: Any) -> None:
    assert fingerprint(one, types=TYPES) != fingerprint(other, types=TYPES)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_a_value_from_the_journal_has_the_fingerprint_it_had(value: Any) -> None:
    assert fingerprint(there_and_back(value), types=TYPES) == fingerprint(value, types=TYPES)


# --- texts for people ------------------------------------------------------------------


class Angry:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@settings(max_examples=200, deadline=None)
@given(VALUES, st.integers(-1, 60))
def test_a_readable_form_never_exceeds_its_limit(value: Any, limit: int) -> None:
    text = readable(value, limit)
    assert len(text) <= max(limit, 0)
    text.encode()
    assert "\0" not in text


def test_a_readable_form_is_short_and_never_raises() -> None:
    assert readable("a\0b") == "a␀b"
    assert readable({"a": 1, "b": ["x"]}) == "{'a': 1, 'b': ['x']}"
    assert (
        readable([SystemMessage("be kind"), HumanMessage("hi")])
        == "[system: 'be kind', human: 'hi']"
    )
    assert len(readable("x" * 10**6)) == 200
    assert "Angry" in readable([Angry()])
    assert len(readable([["x" * 10**6] * 1000] * 1000)) <= 200
    assert readable(cycle("list"))
    assert readable(deep(10_000))


@pytest.mark.promise("H-13")
@given(ANY_TEXT)
def test_a_cleaned_text_fits_every_column(text: str) -> None:
    """H-13: the documented rule for error messages and reasons."""
    clean = clean_text(text)
    clean.encode()
    assert "\0" not in clean
    assert clean_text(clean) == clean


@pytest.mark.promise("H-13")
def test_cleaning_follows_one_rule() -> None:
    """H-13: NUL is shown, a lone half becomes U+FFFD, two halves become what they meant."""
    assert clean_text("a\0b") == "a\u2400b"
    assert clean_text("a\ud83d") == "a\ufffd"
    assert clean_text("\ude00x\ud83dy") == "\ufffdx\ufffdy"
    assert clean_text("\ud83d\ude00") == "\U0001f600"
    assert clean_text("退款 é") == "退款 é"


def test_a_uuid_key_and_value_are_kept() -> None:
    one = UUID(int=7)
    assert same(there_and_back({one: one}), {one: one})
