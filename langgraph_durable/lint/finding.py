"""What the lint says of a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CODES: Mapping[str, str] = {
    "clock": "reads the clock: a replay would see another time. Use ctx.now(key)",
    "random": "draws a random number: a replay would draw another. Use ctx.random(key)",
    "uuid": "makes an id: a replay would make another. Use ctx.uuid(key)",
    "environment": "reads the environment, which a deploy may change. Put it into the run's input",
    "network": "calls the network outside of a step, again on every replay. Use ctx.tool or ctx.once",
    "model": "asks a model outside of a step: it is asked, and paid, again on every replay. Use ctx.llm",
    "swallowed": "puts a question under an `except` that catches the pause. Re-raise GraphBubbleUp",
    "loop-key": "uses the same key on every turn of a loop. Put the index in it: f'{key}:{i}'",
    "made-up-key": "makes its key from a clock, an id or chance: a replay would look up another",
    "blocking": "blocks the event loop. Await asyncio.sleep, or use a sync node",
    "no-key": "writes without an idempotency key: a crash before its record writes twice. Send the key, or "
    "declare the effect 'once'",
    "key-unused": "is taken and not used: the other side can't tell a repeat. Send it along",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line that would differ on replay, or a step that can't be told apart."""

    code: str
    file: str
    line: int
    node: str
    message: str
    what: str = "node"

    def __str__(self) -> str:
        """Say it as compilers do: file, line, code, sentence."""
        return f"{self.file}:{self.line}: [{self.code}] {self.what} {self.node!r} {self.message}"
