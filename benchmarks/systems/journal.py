"""The journal alone: the writer thread and the store, without LangGraph, worker and context."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from benchmarks.workload import NODES, answer, check_count
from langgraph_durable.journal import JournalWriter, RunJournal
from langgraph_durable.runs import Done, Step, StepState
from langgraph_durable.store import NewRun, RunStore, Served, open_engine

LEASE_SECONDS = 60.0


class Journal:
    """Records steps of claimed runs, as fast as they are committed."""

    def __init__(self, url: str) -> None:
        self._store = RunStore(open_engine(url))
        self._store.upgrade()
        self._loop = asyncio.new_event_loop()
        self._writer = JournalWriter(self._store, LEASE_SECONDS)
        self._writer.start()

    def batch(self, runs: int, steps: int = NODES) -> dict[str, Any]:
        """Record `steps` steps of each of `runs` runs at once."""
        return self._loop.run_until_complete(self._batch(runs, steps))

    async def _batch(self, runs: int, steps: int) -> dict[str, Any]:
        journals = [self._claimed() for _ in range(runs)]
        started = time.perf_counter()
        await asyncio.gather(*(_record(journal, i, steps) for i, journal in enumerate(journals)))
        seconds = time.perf_counter() - started
        for i, journal in enumerate(journals):
            self._writer.unfollow(journal.lease)
            recorded = self._store.list_steps(journal.lease.run_id)
            check_count("steps", len(recorded), steps)
            check_count("right steps", sum(_is_right(step, i) for step in recorded), steps)
            self._store.settle(journal.lease, Done("null"))
        return {"seconds": seconds}

    def commits(self, steps: int) -> dict[str, Any]:
        """Record the steps of one run, one after another."""
        return self.batch(1, steps)

    def _claimed(self) -> RunJournal:
        run_id = uuid.uuid4().hex
        self._store.create(
            NewRun(id=run_id, tenant="t", agent="a", version="1", mode="steps", input="null",
                   thread=run_id)
        )  # fmt: skip
        claim = self._store.claim("w", LEASE_SECONDS, Served([("a", "1")]))
        assert claim is not None
        return self._writer.follow(claim.lease, self._store.load(claim.lease), None, self._loop)

    def close(self) -> None:
        """Stop the writer."""
        self._writer.stop()


async def _record(journal: RunJournal, seed: int, steps: int) -> None:
    for i in range(steps):
        value = f'"{answer(seed, i)}"'
        await journal.record(
            Step(key=f"n{i}", kind="once", name="model", fingerprint="", value=value,
                 state=StepState.RECORDED, place=f"n{i}@{i + 1}")
        )  # fmt: skip


def _is_right(step: Step, seed: int) -> bool:
    return step.value == f'"{answer(seed, int(step.key[1:]))}"'
