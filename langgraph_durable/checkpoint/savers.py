"""Savers: what a worker keeps open so that each pass gets a saver cheaply."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from ..encryption import Keyring
from ..errors import LeaseLost, StoreError
from ..runs import Lease
from ..secrets import Revealed
from ..store import fence
from ..values import Types
from .fenced import FencedSaver, Pass
from .state import StateSerializer, unreachable

logger = logging.getLogger(__name__)


class Savers(ABC):
    """The connections of one worker to the checkpoints; belongs to one event loop."""

    def __init__(self, target: str, types: Types, keyring: Keyring | None = None) -> None:
        self._target = target
        self._types = types
        self._keyring = keyring

    @classmethod
    def for_url(
        cls, url: str, *, types: Types | None = None, keyring: Keyring | None = None
    ) -> Savers:
        """Choose the savers of a database; nothing is connected yet.

        The classes in `types` come back from the state as themselves; with `keyring` it is
        encrypted.

        Raises:
            StoreError: the URL is of no supported database, or its driver is missing.
        """
        backend, target = fence.target(url)
        types = types or Types()
        if backend == "sqlite":
            from .sqlite import SqliteSavers

            return SqliteSavers(target, types, keyring)
        try:
            from .postgres import PostgresSavers
        except ImportError as error:
            raise StoreError(
                "the PostgreSQL driver is missing: pip install 'langgraph-durable[postgres]'"
            ) from error
        return PostgresSavers(target, types, keyring)

    @abstractmethod
    async def open(self) -> None:
        """Connect, and create LangGraph's tables where they are missing.

        Raises:
            StoreError: the database can't be reached.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close every connection."""

    @abstractmethod
    async def delete_thread(self, thread_id: str) -> None:
        """Delete a thread's checkpoints: not fenced, so only for a thread of no live run."""

    def _warn_of_unreachable(self) -> None:
        if names := unreachable(self._types.classes):
            logger.warning(
                "in graph mode, state of these classes comes back as dicts, because LangGraph "
                "finds a class only at the top level of its module: %s",
                ", ".join(names),
            )

    def _serializer(self, now: Pass | None = None) -> StateSerializer:
        # for each pass anew: agents, and so classes, may be registered at any time
        return StateSerializer(self._types, now.secrets if now else None, self._keyring)

    @abstractmethod
    def _saver(self, now: Pass) -> AbstractAsyncContextManager[FencedSaver]:
        """Give a pass its saver."""

    @asynccontextmanager
    async def fenced(
        self, lease: Lease, secrets: Revealed | None = None
    ) -> AsyncIterator[FencedSaver]:
        """Give the saver for one pass of one run; what `secrets` holds is not written.

        Raises:
            LeaseLost: at the end, if a write of the pass was refused. The write has raised
                it too, but LangGraph swallows that where the write was in the background:
                a refused question would look like a question that was asked.
        """
        now = Pass(lease, Revealed() if secrets is None else secrets)
        async with self._saver(now) as saver:
            try:
                yield saver
            except LeaseLost:
                raise
            except Exception as error:
                if now.lost:
                    raise now.lose() from error
                raise
            if now.lost:
                raise now.lose()
