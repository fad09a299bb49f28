"""A replay calls nothing: what reaches for the network meanwhile is refused, and named."""

from __future__ import annotations

import asyncio
import site
import socket
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

_PATHS = sysconfig.get_paths()
_NOT_THEIRS = tuple(
    {_PATHS["stdlib"], _PATHS["purelib"], *site.getsitepackages(), str(Path(__file__).parents[1])}
)


@dataclass(frozen=True, slots=True)
class Reached:
    """That code outside of a step reached for the network."""

    address: str
    place: str  # file and line of the code that is not a library's

    def __str__(self) -> str:
        """Say it in a line."""
        return f"the code reached for {self.address} outside of a step, in {self.place}"


@contextmanager
def offline() -> Iterator[list[Reached]]:
    """Refuse every connection, and give the list of those that were tried.

    A name that is looked up counts as well. Only for tests: it holds for the whole process.
    """
    found: list[Reached] = []

    def refuse(*given: Any, **_: Any) -> Any:
        reached = Reached(_address(given), _place())
        if reached.address not in {one.address for one in found}:
            found.append(reached)
        raise ConnectionRefusedError(f"{reached}: a replay calls nothing")

    with (
        patch.object(socket.socket, "connect", refuse),
        patch.object(socket.socket, "connect_ex", refuse),
        patch.object(socket, "getaddrinfo", refuse),
        patch.object(asyncio.BaseEventLoop, "getaddrinfo", refuse),
    ):
        yield found


def _address(given: tuple[Any, ...]) -> str:
    """Return what was asked for: `connect(address)` or `getaddrinfo(host, port)`, of an object."""
    parts = [one for one in given if isinstance(one, str | bytes | int | tuple)]
    if parts and isinstance(parts[0], tuple):
        parts = list(parts[0])
    return ":".join(str(part) for part in parts[:2])


def _place() -> str:
    """Return the innermost line that is neither Python's nor a library's."""
    theirs = [f for f in traceback.extract_stack() if not f.filename.startswith(_NOT_THEIRS)]
    theirs = [f for f in theirs if not f.filename.startswith("<")]
    return f"{theirs[-1].filename}:{theirs[-1].lineno} in {theirs[-1].name}" if theirs else "?"
