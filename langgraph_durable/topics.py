"""Topics of messages, and the patterns that name several: `refund.paid`, `refund.*`.

One rule for all: where a message is sent, where a sink is named, and in the store's SQL.
Capitals count, on every database (LIKE would not see them on SQLite).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from langgraph_durable.errors import BadInput

_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,99}\*?")
#: The runtime's own: what is told by `notify=`.
NOTICES = ("question.*", "run.*")


def check(pattern: str) -> None:
    """Refuse a pattern that can't be told from a notification's, or is none.

    Raises:
        BadInput: what it must look like.
    """
    if not _PATTERN.fullmatch(pattern) or _meets(pattern, NOTICES):
        raise BadInput(
            f"outbox topic {pattern!r}: letters, digits, -, _ and ., with one * at the end at "
            "most; question.… and run.… are the runtime's own (see notify=)"
        )


def _meets(pattern: str, others: Iterable[str]) -> bool:
    """Whether a topic could be named by the pattern and by one of the others."""
    text, opens = split(pattern)
    return any(
        text.startswith(other) or (opens and other.startswith(text))
        for other, _ in map(split, others)
    )


def split(pattern: str) -> tuple[str, bool]:
    """Return the text of a pattern, and whether it is only the beginning of a topic."""
    text, star, _ = pattern.partition("*")
    return text, bool(star)


def matches(patterns: Iterable[str], topic: str) -> bool:
    """Whether one of the patterns names a topic."""
    parts = (split(pattern) for pattern in patterns)
    return any(topic.startswith(text) if opens else topic == text for text, opens in parts)
