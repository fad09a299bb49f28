"""What a declaration may say about the people who answer: a rule's, a tool's, a question's."""

from __future__ import annotations

import math
from decimal import Decimal

from langgraph_durable.errors import BadInput

MAX_APPROVALS = 10
MAX_SECONDS = 3_155_760_000  # a hundred years


def check_asking(
    what: str,
    *,
    approvals: object = 1,
    escalate_to: object = None,
    **seconds: object,
) -> None:
    """Refuse what nobody could do, or no time could reach; `what` begins the sentence.

    Raises:
        BadInput: it names the word and its limit.
    """
    if isinstance(approvals, bool) or not isinstance(approvals, int):
        raise BadInput(f"{what}: approvals is a whole number")
    if not 1 <= approvals <= MAX_APPROVALS:
        raise BadInput(f"{what}: approvals is 1 to {MAX_APPROVALS}")
    if (escalate_to is None) != (seconds.get("escalate_after_seconds") is None):
        raise BadInput(f"{what}: escalate_to and escalate_after_seconds go together")
    for word, value in seconds.items():
        if value is not None and not _is_wait(value):
            raise BadInput(
                f"{what}: {word} must be a number above 0, at most {MAX_SECONDS:,} (a hundred "
                f"years), not {value!r}"
            )


def check_word(what: str, value: object) -> None:
    """Refuse what is no name, of a role or a tool.

    Raises:
        BadInput: it is empty, padded, not printable or no text.
    """
    if not isinstance(value, str) or not value or value != value.strip() or not value.isprintable():
        raise BadInput(f"{what} must be a name or '*', not {value!r}")


def _is_wait(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return False
    return math.isfinite(value) and 0 < value <= MAX_SECONDS
