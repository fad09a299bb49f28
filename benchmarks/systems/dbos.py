"""DBOS: workflows of steps, with and without LangGraph around them."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
import uuid
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSConfig, SetWorkflowID

from benchmarks.databases import is_postgres
from benchmarks.workload import NODES, answer, chain, check, check_count, given, model

QUEUE = "bench"


async def _step(seed: int, node: int) -> str:
    return await DBOS.run_step_async({"name": f"n{node}"}, model, seed, node)


_graph = chain(_step).compile()
_held = False  # at the end of its first pass the long workflow waits to be cancelled
_passes: list[float] = []  # seconds that passes over the long workflow took


@DBOS.workflow()
async def function(seed: int) -> dict[str, Any]:
    """A workflow of 20 steps."""
    said = ""
    for node in range(NODES):
        said = await _step(seed, node)
    return {"answer": said, "count": NODES}


@DBOS.workflow()
async def graph(seed: int) -> dict[str, Any]:
    """The graph, each node a step."""
    return dict(await _graph.ainvoke(given(seed)))


@DBOS.workflow()
async def one(seed: int) -> str:
    """A workflow of one step."""
    return await _step(seed, 0)


@DBOS.workflow()
async def long(steps: int) -> dict[str, Any]:
    """A workflow of many steps, whose first pass doesn't get over its end."""
    started = time.perf_counter()
    said = ""
    for node in range(steps):
        said = await _step(1, node)
    _passes.append(time.perf_counter() - started)
    while _held:  # noqa: ASYNC110  # told by another loop
        await asyncio.sleep(0.005)
    return {"answer": said, "count": steps}


class Steps:
    """Workflows of steps, without LangGraph."""

    workflow: Any = staticmethod(function)

    def __init__(self, url: str) -> None:
        self._url = url
        self._tables = "dbos." if is_postgres(url) else ""
        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": url,
            "log_level": "ERROR",
            "enable_otlp": False,
        }
        DBOS(config=config)
        DBOS.launch()
        self._loop = asyncio.new_event_loop()
        driver = url.replace("postgresql://", "postgresql+psycopg://")
        self._engine = sa.create_engine(driver, poolclass=sa.NullPool)

    def batch(self, runs: int) -> dict[str, Any]:
        """Run the workflow `runs` times at once; starting them is part of it."""
        return self._loop.run_until_complete(self._batch(runs))

    async def _batch(self, runs: int) -> dict[str, Any]:
        seeds = list(range(runs))
        ids = [uuid.uuid4().hex for _ in seeds]
        started = time.perf_counter()
        handles = []
        for seed, workflow_id in zip(seeds, ids, strict=True):
            with SetWorkflowID(workflow_id):
                handles.append(await DBOS.start_workflow_async(self.workflow, seed))
        outputs = await asyncio.gather(*(handle.get_result() for handle in handles))
        seconds = time.perf_counter() - started
        check(outputs, seeds)
        check_count("steps", sum(self._recorded(workflow_id) for workflow_id in ids), runs * NODES)
        return {"seconds": seconds}

    def _recorded(self, workflow_id: str) -> int:
        counting = sa.text(
            f"SELECT count(*) FROM {self._tables}operation_outputs WHERE workflow_uuid = :id"
        )
        with self._engine.connect() as connection:
            return connection.execute(counting, {"id": workflow_id}).scalar_one()

    def replay(self, steps: int) -> dict[str, Any]:
        """Record a long workflow, cancel it at its end; time the pass that replays it.

        Timed is the workflow's own code: how it gets to a worker again is left out.
        """
        return self._loop.run_until_complete(self._replay(steps))

    async def _replay(self, steps: int) -> dict[str, Any]:
        global _held
        _passes.clear()
        _held = True
        workflow_id = uuid.uuid4().hex
        with SetWorkflowID(workflow_id):
            first = await DBOS.start_workflow_async(long, steps)
        while not _passes:  # noqa: ASYNC110  # it may run in another loop
            await asyncio.sleep(0.005)
        await DBOS.cancel_workflow_async(workflow_id)
        _held = False
        with contextlib.suppress(Exception):  # it was cancelled
            await first.get_result()
        again = await DBOS.resume_workflow_async(workflow_id)
        output = await again.get_result()
        check([output], [1], steps)
        check_count("passes", len(_passes), 2)
        check_count("steps", self._recorded(workflow_id), steps)
        return {"seconds": _passes[1]}

    def one_step(self, times: int) -> dict[str, Any]:
        """Put a workflow of one step on a queue of this idle process; wait for its result.

        Beside it, starting one in the process itself, which needs no idle worker.
        """
        DBOS.register_queue(QUEUE)
        client = DBOSClient(system_database_url=self._url)
        time.sleep(2)
        waited = []
        for seed in range(times):
            time.sleep(0.05)
            started = time.perf_counter()
            handle: Any = client.enqueue({"queue_name": QUEUE, "workflow_name": "one"}, seed)
            output = handle.get_result(polling_interval_sec=0.02)
            waited.append(time.perf_counter() - started)
            if output != answer(seed, 0):
                raise AssertionError(f"workflow {seed} gave {output!r}")
        here = [self._loop.run_until_complete(self._one_here(seed)) for seed in range(times)]
        return {"seconds": statistics.median(waited), "here": statistics.median(here)}

    async def _one_here(self, seed: int) -> float:
        started = time.perf_counter()
        handle = await DBOS.start_workflow_async(one, seed)
        output = await handle.get_result()
        if output != answer(seed, 0):
            raise AssertionError(f"workflow {seed} gave {output!r}")
        return time.perf_counter() - started

    def close(self) -> None:
        """Stop DBOS."""
        DBOS.destroy()


class Graph(Steps):
    """LangGraph nodes as DBOS steps."""

    workflow = staticmethod(graph)
