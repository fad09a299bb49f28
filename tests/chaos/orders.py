"""What is ordered, and what must be there at its end: plain data, without the product.

Each kind of order is a row of acts; each act is one node of a graph, `verb:parts`. The
agents (`agents`) do what a row says, and the checker (`checker`) reads the same row to know
what had to happen. A new kind is one line here; a new verb is one line in `VERBS` and a node.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

MODES = ("steps", "graph")
AMOUNT, EDITED = 100, 150

KINDS: Mapping[str, tuple[str, ...]] = {
    "pay": ("think", "read", "pay:a"),
    "ask": ("read", "charge:a", "pay:b"),
    "confirm": ("think", "confirm:a", "pay:b"),
    "form": ("ask:a", "pay:b"),
    "hurry": ("hurry:a", "pay:b"),
    "post": ("post:a", "post:b,c", "pay:d"),
    "mail": ("mail:a", "mail:b,c", "pay:d"),
    "nap": ("pay:a", "nap:a", "pay:b"),
    "chew": ("chew", "pay:a", "chew", "chew", "pay:b"),
    "fan": ("pay:a,b,c", "pay:d"),
    "asks": ("charge:a,b", "pay:c"),
    "tell": ("tell:a", "told:b", "tell:c"),
    "hear": ("hear:a", "pay:b", "hear:c"),
    "saga": ("book:a", "nap:a", "book:b,c", "nap:b", "pay:d"),
    "broken": ("book:a", "nap:a", "book:b,c", "break"),
    "long": ("pay:a", "pay:b", "pay:c", "pay:d", "pay:e", "pay:f", "pay:g", "pay:h"),
}

Needs = Literal["always", "yes", "never"]


@dataclass(frozen=True, slots=True)
class Verb:
    """What an act leaves behind, for each of its parts."""

    effect: Needs = "never"  # in the ledger: always, only after a yes, or never
    asks: bool = False
    tells: bool = False  # a message
    shows: bool = False  # a line in the run's result
    hears: bool = False  # a signal, whose payload is the part's name
    undone: bool = False  # if the run fails or is cancelled
    fails: bool = False  # the run, whatever comes


VERBS: Mapping[str, Verb] = {
    "think": Verb(),
    "read": Verb(),
    "nap": Verb(),
    "chew": Verb(),
    "pay": Verb(effect="always", shows=True),
    "charge": Verb(effect="yes", asks=True, shows=True),
    "confirm": Verb(effect="yes", asks=True, shows=True),
    "ask": Verb(asks=True, shows=True),
    "hurry": Verb(asks=True, shows=True),
    "post": Verb(effect="always", shows=True),
    "mail": Verb(effect="always", shows=True),
    "hear": Verb(hears=True, shows=True),
    "book": Verb(effect="always", shows=True, undone=True),
    "break": Verb(fails=True),
    "tell": Verb(tells=True),
    "told": Verb(effect="always", tells=True, shows=True),
}


@dataclass(frozen=True, slots=True)
class Order:
    """One order of a customer: one run."""

    number: int
    kind: str
    mode: str

    @property
    def id(self) -> str:
        """What the ledger and the customer call it; also the submit's idempotency key."""
        return f"o-{self.number}"

    @property
    def agent(self) -> str:
        """The agent that carries it out."""
        return f"{self.kind}.{self.mode}"


def parts(kind: str) -> Iterator[tuple[str, str]]:
    """Return (verb, part) of each act of a kind, in order."""
    for act in KINDS[kind]:
        verb, _, named = act.partition(":")
        for part in named.split(","):
            yield verb, part


def fails(kind: str) -> bool:
    """Whether an order of this kind can't succeed."""
    return any(VERBS[verb].fails for verb, _ in parts(kind))


def is_undone(kind: str) -> bool:
    """Whether an order of this kind leaves nothing behind unless it succeeds."""
    return any(VERBS[verb].undone for verb, _ in parts(kind))


def order(seed: int, number: int) -> Order:
    """Return the order of a number: the same for a seed."""
    chance = random.Random(f"{seed}/order/{number}")
    return Order(number, chance.choice(list(KINDS)), chance.choice(MODES))
