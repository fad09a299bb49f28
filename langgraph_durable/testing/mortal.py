"""A runtime whose process may end at any point: store, savers, tools and models that tell.

Each is the real one, behind a thin front that reaches a point before and after every
transaction and call. Once the life is over the front lets nothing through.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from langgraph_durable.app import Durable
from langgraph_durable.checkpoint import FencedSaver, Savers
from langgraph_durable.checkpoint.fenced import Act, Pass, T
from langgraph_durable.clock import Chance, Clock
from langgraph_durable.errors import DurableError, LeaseLost
from langgraph_durable.models import ModelRoutes
from langgraph_durable.runs import Decision, Lease, Status, StepState
from langgraph_durable.store import Ending, RunStore, Write
from langgraph_durable.testing.fakes import FakeClock
from langgraph_durable.testing.points import Called, Died, Life
from langgraph_durable.testing.scenes import Scene
from langgraph_durable.tools import CallInfo, ToolHub, digest
from langgraph_durable.values import Types, encode
from langgraph_durable.worker import Worker

_READS = ("get", "list", "find", "question", "check", "untaken")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")  # LangGraph's ids of tasks: new in every run


class MortalDurable(Durable):
    """The real thing on a SQLite file, in a process that ends where the life says."""

    def __init__(
        self, scene: Scene, life: Life, engine: Any, clock: FakeClock, chance: Chance
    ) -> None:
        self._engine = engine
        super().__init__(
            engine.url.render_as_string(hide_password=False),
            tools=scene.tools,
            models=scene.models,
            rules=scene.rules,
            types=scene.types,
            clock=clock,
            chance=chance,
        )
        self.life = life
        # a front, and not a subclass: transactions that are yet to be written are seen as well
        self.store = cast(RunStore, MortalStore(self.store, life))
        given = scene.services or self.services
        self.services = replace(
            given,
            tools=MortalTools(given.tools, life, self.types),
            models=MortalModels(given.models, life),
            types=self.types,
            clock=clock,
            chance=chance,
            sleep=partial(_pass_time, clock),
        )

    def _open(self, url: str, clock: Clock | None, create: bool) -> RunStore:
        # one engine for all lives: it holds no state of a run, and knows its SQL by then
        return RunStore(self._engine, clock, self.types)

    def savers(self) -> Savers:
        """Return savers that tell each checkpoint."""
        return MortalSavers(super().savers(), life=self.life, types=self.types)


async def _pass_time(clock: FakeClock, seconds: float) -> None:
    clock.advance(seconds)
    await asyncio.sleep(0)


class MortalWorker(Worker):
    """A worker whose loop is cancelled when the life ends."""

    durable: MortalDurable

    async def _once(self) -> str | None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        life = self.durable.life

        def end() -> None:
            if task is not None:
                with contextlib.suppress(RuntimeError):  # the loop is gone already
                    loop.call_soon_threadsafe(task.cancel)

        life.on_death = end
        loop.set_exception_handler(self._complain)
        try:
            return await super()._once()
        finally:
            life.on_death = None
            if life.closing:
                await asyncio.wait(life.closing)
            life.closing.clear()

    def _complain(self, loop: asyncio.AbstractEventLoop, said: dict[str, Any]) -> None:
        if not self.durable.life.is_dead:  # what is left over in a dead process troubles nobody
            loop.default_exception_handler(said)


class MortalStore:
    """A RunStore whose transactions are points."""

    def __init__(self, store: RunStore, life: Life) -> None:
        self._store, self._life = store, life

    def __getattr__(self, name: str) -> Any:
        """Reach a point before and after each transaction that may write."""
        found = getattr(self._store, name)
        if not callable(found):
            return found
        if name.startswith(_READS):
            return partial(self._read, found)
        return partial(self._write, name.replace("_", " "), found)

    def _read(self, read: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._life.check()
        return read(*args, **options)

    def _write(self, label: str, write: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with self._life.around(label):
            return write(*args, **options)

    # What a client does:

    def create(self, new: Any) -> Any:
        """Tell of a submit."""
        with self._life.around("submit", by_worker=False):
            return self._store.create(new)

    def decide(self, question_id: str, decision: Decision, **options: Any) -> Any:
        """Tell of a decision."""
        key = self._store.question(question_id).key
        with self._life.around(f"decision on {key!r}", by_worker=False):
            return self._store.decide(question_id, decision, **options)

    def send(self, new: Any, tenant: str | None = None) -> Any:
        """Tell of a signal."""
        with self._life.around(f"signal {new.id!r}", by_worker=False):
            return self._store.send(new, tenant)

    # What a worker does:

    def claim_some(self, *args: Any, **options: Any) -> Any:
        """Tell of a claim."""
        with self._life.around("claim"):
            return self._store.claim_some(*args, **options)

    def load(self, lease: Lease, **options: Any) -> Any:
        """Tell when the journal is loaded: the claim is committed, and nothing else is done."""
        loaded = self._store.load(lease, **options)
        self._life.reach("after", "load of the journal")
        return loaded

    def sweep(self) -> Any:
        """Tell of a sweep that changed something."""
        self._life.check()
        changed = self._store.sweep()
        if changed:
            self._life.reach("after", "sweep")
        return changed

    def settle(self, lease: Lease, outcome: Any, *args: Any) -> Status:
        """Tell how a pass ended."""
        with self._life.around(f"settlement as {type(outcome).__name__.lower()}"):
            return self._store.settle(lease, outcome, *args)

    def finish(self, endings: Sequence[Ending], lease_seconds: float) -> list[bool]:
        """Tell of ends that the journal's thread settles; it must end in peace."""
        try:
            with self._life.around("settlement as done"):
                return self._store.finish(endings, lease_seconds)
        except Died:
            return [False] * len(endings)

    def put_steps(
        self, writes: Sequence[Write], lease_seconds: float
    ) -> Sequence[DurableError | None]:
        """Tell of each step. The journal's thread must end in peace: to it the lease is lost."""
        labels = [_record_label(w.step.key, w.step.state) for w in writes]
        try:
            for label, write in zip(labels, writes, strict=True):
                if write.step.state is StepState.RECORDED:
                    self._life.trace.value(write.step.key, write.step.value)
                self._life.reach("before", label)
            refused = self._store.put_steps(writes, lease_seconds)
            for label, why in zip(labels, refused, strict=True):
                if why is None:
                    self._life.reach("after", label)
        except Died:
            return [LeaseLost(w.lease.run_id, w.lease.epoch) for w in writes]
        return refused

    def keeping_connection(self) -> AbstractContextManager[None]:
        """No transaction."""
        return self._store.keeping_connection()

    def heartbeat(self, leases: Collection[Lease], lease_seconds: float) -> Mapping[Lease, Status]:
        """Keep leases; this comes by the real clock, so it is no point."""
        try:
            self._life.check()
            return self._store.heartbeat(leases, lease_seconds)
        except Died:
            return {}

    def statuses(
        self, leases: Collection[Lease], patience_seconds: float
    ) -> Mapping[Lease, Status]:
        """Look at leases; this comes by the real clock as well."""
        try:
            self._life.check()
            return self._store.statuses(leases, patience_seconds)
        except Died:
            return {}

    def note(self, *args: Any) -> None:
        """Write a warning of a pass; no point."""
        self._life.check()
        self._store.note(*args)


def recorded_label(key: str) -> str:
    """Return the label of the points around the record of a step's answer."""
    return _record_label(key, StepState.RECORDED)


def _record_label(key: str, state: StepState) -> str:
    return f"record of step {key!r} as {state.value}"


class MortalTools(ToolHub):
    """A hub whose calls are points, and are noted."""

    def __init__(self, hub: ToolHub, life: Life, types: Types) -> None:
        super().__init__()
        self._tools, self._mounts = hub._tools, hub._mounts
        self._hub, self._life, self._types = hub, life, types

    async def call(self, name: str, arguments: Mapping[str, Any], info: CallInfo) -> Any:
        """Tell of a call."""
        with self._life.around(f"call of tool {name!r} for step {info.key!r}"):
            try:
                result = await self._hub.call(name, arguments, info)
            except Exception:
                self._note(name, arguments, info, None)
                raise
            text = encode(result, types=self._types, where=f"tool {name!r}")
            self._note(name, arguments, info, text)
            return result

    def _note(
        self, name: str, arguments: Mapping[str, Any], info: CallInfo, result: str | None
    ) -> None:
        spec = self._hub.spec(name)
        takes_key = spec.key_argument is not None
        self._life.trace.call(
            Called(
                tool=spec.full_name,
                key=info.key,
                idempotency_key=info.key_for_tool if takes_key else None,
                arguments=digest(arguments),
                effect=spec.effect.value,
                result=result,
            )
        )

    async def probe(self, name: str, arguments: Mapping[str, Any], info: CallInfo) -> Any:
        """Ask a probe: a read, so no point."""
        self._life.check()
        return await self._hub.probe(name, arguments, info)

    async def aclose(self) -> None:
        """Let go of connections."""
        await self._hub.aclose()


class MortalModels(ModelRoutes):
    """Routes whose calls are points."""

    def __init__(self, routes: ModelRoutes, life: Life) -> None:
        super().__init__({})
        self._models, self._routes, self._life = routes._models, routes, life

    async def ask(self, route: str, messages: Any, **options: Any) -> AIMessage:
        """Tell of a call."""
        with self._life.around(f"call of model {route!r}"):
            return await self._routes.ask(route, messages, **options)


class MortalSavers(Savers):
    """Savers whose checkpoints are points."""

    def __init__(self, savers: Savers, *, life: Life, types: Types) -> None:
        super().__init__("", types)
        self._savers, self._life = savers, life

    async def open(self) -> None:
        """Open the real ones."""
        await self._savers.open()

    async def aclose(self) -> None:
        """Close the real ones."""
        await self._savers.aclose()

    async def delete_thread(self, thread_id: str) -> None:
        """Delete a thread."""
        with self._life.around("deletion of a thread"):
            await self._savers.delete_thread(thread_id)

    @asynccontextmanager
    async def _saver(self, now: Pass) -> AsyncIterator[FencedSaver]:
        inner = self._savers._saver(now)
        saver = await inner.__aenter__()
        try:
            yield MortalSaver(saver, self._life)
        finally:
            # seen through: a loop that ends cancels what it finds, and the connection's thread
            # would then answer a loop that is gone
            closing = asyncio.ensure_future(inner.__aexit__(None, None, None))
            self._life.closing.add(closing)
            await asyncio.shield(closing)


class MortalSaver(FencedSaver):
    """A saver of one pass whose writes are points."""

    def __init__(self, saver: FencedSaver, life: Life) -> None:
        super().__init__(saver._pass, saver._plain)
        self._saver, self._life = saver, life

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Tell of a checkpoint."""
        where = _inner(config)
        step, source = metadata.get("step"), metadata.get("source")
        with self._life.around(f"checkpoint {step} ({source}){where}"):
            return await super().aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Tell of what a node produced."""
        node = _ID.sub("", task_path).removeprefix("~__pregel_pull, ") or "the input"
        channels = "interrupt" if any(c == "__interrupt__" for c, _ in writes) else "results"
        with self._life.around(f"{channels} of {node}{_inner(config)}"):
            await super().aput_writes(config, writes, task_id, task_path)

    async def _write(self, act: Act[T], *, progress: bool = False) -> T:
        self._life.check()
        return await self._saver._write(act, progress=progress)

    async def _read(self, act: Act[T]) -> T:
        self._life.check()
        return await self._saver._read(act)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> FencedSaver:
        """Return a saver of the same pass that also restores these classes."""
        return MortalSaver(self._saver.with_allowlist(extra_allowlist), self._life)


def _inner(config: RunnableConfig) -> str:
    namespace = _ID.sub("", config.get("configurable", {}).get("checkpoint_ns", ""))
    return f" in {namespace}" if namespace else ""
