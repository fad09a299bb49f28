"""A saver for one pass of one run: LangGraph's own, behind a fence.

What differs between the databases is how an act of LangGraph's saver is put behind the
fence (`_write`) and tried again (`_read`); the two are in `sqlite` and `postgres`.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from ..errors import LeaseLost
from ..runs import Lease
from ..secrets import Revealed
from .state import clean_metadata, refusal

T = TypeVar("T")
Act = Callable[[BaseCheckpointSaver[str]], Awaitable[T]]

_LOCATION = {"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map"}


@dataclass(slots=True)
class Pass:
    """What is known of one pass; clones of its saver share it."""

    lease: Lease
    secrets: Revealed = field(default_factory=Revealed)
    lost: bool = False  # a write was refused
    progressed: bool = False  # a write was marked as progress

    def lose(self) -> LeaseLost:
        """Note that the lease is gone, and return the error to raise."""
        self.lost = True
        return LeaseLost(self.lease.run_id, self.lease.epoch)


class FencedSaver(BaseCheckpointSaver[str]):
    """LangGraph's saver for one pass: writes need the lease, reads don't."""

    def __init__(self, now: Pass, plain: BaseCheckpointSaver[str]) -> None:
        super().__init__(serde=plain.serde)
        self._pass = now
        self._plain = plain  # LangGraph's saver, which knows nothing of the lease
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    @property
    def lost(self) -> bool:
        """Whether a write of this pass was refused."""
        return self._pass.lost

    @abstractmethod
    async def _write(self, act: Act[T], *, progress: bool = False) -> T:
        """Let LangGraph's saver write, if the lease holds, in one transaction with the check."""

    @abstractmethod
    async def _read(self, act: Act[T]) -> T:
        """Let LangGraph's saver read."""

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read one checkpoint."""
        return await self._read(lambda saver: saver.aget_tuple(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Read checkpoints, the newest first."""

        async def every(saver: BaseCheckpointSaver[str]) -> list[CheckpointTuple]:
            found = saver.alist(config, filter=filter, before=before, limit=limit)
            return [checkpoint async for checkpoint in found]

        for checkpoint in await self._read(every):
            yield checkpoint

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint.

        Raises:
            LeaseLost: another worker owns the run; nothing was written.
            NotEncodable: the state has something that LangGraph's serializer can't keep.
        """
        config, metadata = _clean_config(config), clean_metadata(metadata)
        try:
            return await self._write(
                lambda saver: saver.aput(config, checkpoint, metadata, new_versions), progress=True
            )
        except TypeError as error:
            raise refusal(checkpoint["channel_values"].items(), self.serde, error) from error

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Write what a node produced.

        Raises:
            LeaseLost: another worker owns the run; nothing was written.
            NotEncodable: the state has something that LangGraph's serializer can't keep.
        """
        ordinary = any(channel not in WRITES_IDX_MAP for channel, _ in writes)
        try:
            await self._write(
                lambda saver: saver.aput_writes(config, writes, task_id, task_path),
                progress=ordinary,
            )
        except TypeError as error:
            raise refusal(writes, self.serde, error) from error

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread.

        Raises:
            LeaseLost: another worker owns the run; nothing was deleted.
        """
        await self._write(lambda saver: saver.adelete_thread(thread_id))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Read the writes of delta channels."""
        return await self._read(
            lambda saver: saver.aget_delta_channel_history(config=config, channels=channels)
        )

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return a channel's next version, as LangGraph's saver counts."""
        return self._plain.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> FencedSaver:
        """Return a saver of the same pass that also restores these classes."""
        clone = super().with_allowlist(extra_allowlist)
        assert isinstance(clone, FencedSaver)  # noqa: S101 - a shallow copy of self
        if clone is not self:
            clone._plain = self._plain.with_allowlist(extra_allowlist)
        return clone

    # A sync node may run a graph of its own: LangGraph then calls from the node's thread.

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read one checkpoint, from a node's thread."""
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Read checkpoints, from a node's thread."""

        async def every() -> Sequence[CheckpointTuple]:
            found = self.alist(config, filter=filter, before=before, limit=limit)
            return [checkpoint async for checkpoint in found]

        return iter(self._wait(every()))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint, from a node's thread."""
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Write what a node produced, from a node's thread."""
        return self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread, from a node's thread."""
        return self._wait(self.adelete_thread(thread_id))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Read the writes of delta channels, from a node's thread."""
        return self._wait(self.aget_delta_channel_history(config=config, channels=channels))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.get_ident() == self._loop_thread:
            work.close()  # waiting here would stop the loop that has to do the work
            raise asyncio.InvalidStateError(
                "this saver's sync methods are for other threads; on the loop's own use ainvoke"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _clean_config(config: RunnableConfig) -> RunnableConfig:
    """Clean what LangGraph copies from a config into metadata; where the thread is stays."""
    configurable = {
        key: value
        if key in _LOCATION or not isinstance(value, (str, float))
        else clean_metadata(value)
        for key, value in config.get("configurable", {}).items()
    }
    cleaned: RunnableConfig = {**config, "configurable": configurable}
    if "metadata" in config:
        cleaned["metadata"] = clean_metadata(config["metadata"])
    return cleaned
