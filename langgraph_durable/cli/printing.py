"""How it is printed: sentences, tables, JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from langgraph_durable.errors import BadInput
from langgraph_durable.values import readable, strict_json

# in a pipe a line is a line: nothing is wrapped to a terminal's width
out = Console(width=None if sys.stdout.isatty() else 1_000)
err = Console(stderr=True)


def say(text: str) -> None:
    """Print a line for people; what is in brackets is no markup, ``:x:`` no picture."""
    out.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


def complain(text: str, style: str | None = None) -> None:
    """Print a line beside the output."""
    err.print(text, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def from_json(what: str, text: str) -> Any:
    """Read what was typed as JSON.

    Raises:
        BadInput: it is none.
    """
    try:
        return strict_json(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{what} can't be read as JSON: {error}") from error


def at(time: datetime) -> str:
    """Show a time."""
    return time.strftime("%Y-%m-%d %H:%M:%S")


def print_table(columns: Iterable[str], lines: Iterable[Iterable[Any]]) -> None:
    """Print lines under their columns; nothing when there are none."""
    lines = list(lines)
    if not lines:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0, overflow="fold")
    for line in lines:
        table.add_row(*(Text(str(cell)) for cell in line))
    out.print(table, markup=False)


def print_json(data: Any) -> None:
    """Print data for programs."""
    sys.stdout.write(json.dumps(data, default=plain, indent=2, ensure_ascii=False) + "\n")


def plain(value: Any) -> Any:
    """Say how JSON shows what it has no form for."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return readable(value)
