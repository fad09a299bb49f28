"""Temporal: its dev server from a wheel, and its LangGraph plugin. Each node is an activity."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.langgraph import LangGraphPlugin
from temporalio.langgraph import graph as temporal_graph
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.workload import NODES, chain, check, check_count, given, model

QUEUE = "bench"
PATIENCE_SECONDS = 40


@workflow.defn
class Chain:
    """The graph as a workflow."""

    @workflow.run
    async def run(self, seed: int) -> Any:
        """Run the graph; its nodes are activities."""
        return await temporal_graph("chain").compile().ainvoke(given(seed))


class Temporal:
    """The dev server with a database file (its default keeps nothing), and one worker."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._port = _free_port()
        tool = Path(sys.executable).with_name("temporal")
        self._file = Path(f"/tmp/lgd-bench-temporal-{uuid.uuid4().hex[:8]}.db")
        self._server = subprocess.Popen(
            [str(tool), "server", "start-dev", "--headless", "--port", str(self._port),
             "--log-level", "error", "--db-filename", str(self._file)],
        )  # fmt: skip
        try:
            self._loop.run_until_complete(self._start())
        except BaseException:
            self._end_server()
            raise

    async def _start(self) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._client = await Client.connect(f"localhost:{self._port}")
                break
            except RuntimeError:
                if time.monotonic() > until or self._server.poll() is not None:
                    raise
                await asyncio.sleep(0.2)
        plugin = LangGraphPlugin(
            graphs={"chain": chain(model, execute_in="activity")},
            default_activity_options={"start_to_close_timeout": timedelta(seconds=60)},
        )
        self._worker = Worker(
            self._client,
            task_queue=QUEUE,
            workflows=[Chain],
            plugins=[plugin],
            workflow_runner=UnsandboxedWorkflowRunner(),  # the faster of the two
        )
        self._working = asyncio.create_task(self._worker.run())

    def batch(self, runs: int) -> dict[str, Any]:
        """Run the workflow `runs` times at once; starting them is part of it."""
        return self._loop.run_until_complete(self._batch(runs))

    async def _batch(self, runs: int) -> dict[str, Any]:
        seeds = list(range(runs))
        ids = [uuid.uuid4().hex for _ in seeds]
        started = time.perf_counter()
        outputs = await asyncio.gather(
            *(
                self._client.execute_workflow(Chain.run, seed, id=id_, task_queue=QUEUE)
                for seed, id_ in zip(seeds, ids, strict=True)
            )
        )
        seconds = time.perf_counter() - started
        check(outputs, seeds)
        history = await self._client.get_workflow_handle(ids[-1]).fetch_history()
        done = sum(event.HasField("activity_task_completed_event_attributes")
                   for event in history.events)  # fmt: skip
        check_count("activities", done, NODES)
        return {"seconds": seconds}

    def close(self) -> None:
        """Stop the worker and the server."""
        self._working.cancel()
        self._end_server()

    def _end_server(self) -> None:
        self._server.terminate()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.kill()
        self._file.unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
