"""How much memory a worker takes: many runs in flight, and a long journal replayed."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.systems.durable import SERVED, Durably
from benchmarks.workload import answer, check_count
from langgraph_durable import Status, Worker
from langgraph_durable.runs import Drained, Step, StepState
from langgraph_durable.store import Served, Write

MEGABYTE = 1_000_000
PART = 250


class Memory(Durably):
    """Looks at the resident memory of its own process, which is the worker's."""

    def __init__(self, url: str) -> None:
        self._here = 0
        self._open: asyncio.Event | None = None
        super().__init__(url)

    def register(self, durable: Any, version: str) -> None:
        """Register the agents of both jobs."""
        super().register(durable, version)
        durable.agent("waiting", version=version)(self._waiting)
        durable.agent("longest", version=version)(self._longest)

    async def _waiting(self, ctx: Any, seed: Any) -> Any:
        return await ctx.once("wait", partial(self._wait, seed))

    async def _wait(self, seed: int) -> str:
        if self._open is None:
            self._open = asyncio.Event()
        self._here += 1
        await self._open.wait()
        return answer(seed, 0)

    async def _longest(self, ctx: Any, given: Any) -> Any:
        size = 0
        for i in range(given["steps"]):
            size += len(await ctx.once(f"n{i}", partial(_never, i)))
        return size

    def in_flight(self, runs: int) -> dict[str, Any]:
        """Have `runs` runs wait in one worker at once; returns its memory."""
        ids = [self.client.submit("waiting", seed, version=SERVED) for seed in range(runs)]
        before = _resident()
        worker = Worker(self.durable, concurrency=runs)
        thread = threading.Thread(target=worker.serve, daemon=True)
        thread.start()
        until = time.monotonic() + 120
        while self._here < runs and time.monotonic() < until:
            time.sleep(0.05)
        check_count("runs in flight", self._here, runs)
        found = _resident()
        assert worker._loop is not None
        assert self._open is not None
        worker._loop.call_soon_threadsafe(self._open.set)
        self._until_done(ids)
        found = max(found, _resident())
        worker.stop()
        thread.join(30)
        ended = [self.client.get(run_id).status for run_id in ids]
        check_count("runs that succeeded", ended.count(Status.SUCCEEDED), runs)
        return {"seconds": 0.0, "before": before / MEGABYTE, "megabytes": found / MEGABYTE}

    def replay(self, steps: int, size: int) -> dict[str, Any]:
        """Replay a long journal; returns by how much the memory grew at its peak."""
        worker = Worker(self.durable)
        self.client.submit("longest", {"steps": 0}, version=SERVED)
        worker.run_once()  # what the first run loads is not the journal's
        run_id = self.client.submit("longest", {"steps": steps}, version=SERVED)
        self._record(steps, size)
        _forget_peak()
        before = _resident()
        worker.run_once()
        run = self.client.get(run_id)
        check_count("bytes replayed", run.output or 0, steps * size)
        grown = _peak() - before
        return {"seconds": 0.0, "megabytes": grown / MEGABYTE, "times": grown / (steps * size)}

    def _record(self, steps: int, size: int) -> None:
        """Write the journal as a worker would that died at the run's end."""
        store = self.client.store
        claim = store.claim("bench", 60.0, Served([("longest", SERVED)]))
        assert claim is not None
        for start in range(0, steps, PART):
            made = [
                Write(claim.lease, Step(key=f"n{i}", kind="once", fingerprint="", seq=i + 1,
                      state=StepState.RECORDED, value=f'"{answer(1, i, size)}"', place="the agent function"))
                for i in range(start, min(start + PART, steps))
            ]  # fmt: skip
            refused = [why for why in store.put_steps(made, 60.0) if why is not None]
            check_count("refused steps", len(refused), 0)
        store.settle(claim.lease, Drained())


async def _never(i: int) -> str:
    raise AssertionError(f"step {i} was made again")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def _resident() -> int:
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
