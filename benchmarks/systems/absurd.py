"""Absurd: tasks of steps, all in PostgreSQL functions."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
from absurd_sdk import Absurd as Client
from absurd_sdk import AsyncAbsurd

from benchmarks.workload import NODES, answer, check, check_count

QUEUE = "bench"
WORKERS = 8


def prepare(url: str) -> None:
    """Install the schema with its own tool, and make the queue."""
    tool = Path(sys.executable).with_name("absurdctl")
    environment = {**os.environ, "ABSURD_DATABASE_URL": url, "PGDATABASE": url}
    done = subprocess.run(
        [str(tool), "init"], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"absurdctl init: {done.stdout} {done.stderr}")
    Client(url, queue_name=QUEUE).create_queue(QUEUE)


class Absurd:
    """Eight workers, each with a connection of its own, as threads."""

    def __init__(self, url: str) -> None:
        prepare(url)
        self._url = url
        self._client = Client(url, queue_name=QUEUE)
        self._client.register_task(name="chain")(self._task)

    @staticmethod
    def _task(params: Any, ctx: Any) -> Any:
        said = ""
        for node in range(NODES):
            said = ctx.step(f"n{node}", lambda node=node: answer(params["seed"], node))
        return {"answer": said, "count": NODES}

    def batch(self, runs: int) -> dict[str, Any]:
        """Run the task `runs` times at once; spawning them is left out."""
        seeds = list(range(runs))
        ids = [self._client.spawn("chain", {"seed": seed})["task_id"] for seed in seeds]
        seconds = self.work(ids)
        outputs = [self._client.fetch_task_result(task_id) for task_id in ids]
        check([output and output.result for output in outputs], seeds)
        with psycopg.connect(self._url) as connection:
            found = connection.execute(
                f"SELECT count(*) FROM absurd.c_{QUEUE} WHERE task_id = ANY(%s)", (ids,)
            ).fetchone()
        check_count("steps", found[0] if found else 0, runs * NODES)
        return {"seconds": seconds}

    def work(self, ids: list[Any]) -> float:
        """Work until all are done; returns the seconds."""
        workers = []
        for _ in range(min(WORKERS, len(ids))):
            worker = Client(self._url, queue_name=QUEUE)
            worker.register_task(name="chain")(self._task)
            workers.append(worker)
        threads = [threading.Thread(target=_drain, args=(worker,)) for worker in workers]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - started
        for worker in workers:
            worker.close()
        return seconds

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def _drain(worker: Client) -> None:
    """Do what `start_worker` does, until nothing is left."""
    while tasks := worker.claim_tasks(batch_size=1):
        for task in tasks:
            worker._execute_task(task, 120)


class AbsurdAsync(Absurd):
    """One async worker with one connection, all tasks at once: as its `start_worker` does it."""

    def work(self, ids: list[Any]) -> float:
        """Work until all are done; returns the seconds."""
        return asyncio.run(self._work(len(ids)))

    async def _work(self, count: int) -> float:
        worker = AsyncAbsurd(self._url, queue_name=QUEUE)

        @worker.register_task(name="chain")
        async def task(params: Any, ctx: Any) -> Any:
            said = ""
            for node in range(NODES):
                said = await ctx.step(f"n{node}", lambda node=node: _soon(params["seed"], node))
            return {"answer": said, "count": NODES}

        await worker._ensure_connected()
        started = time.perf_counter()
        tasks = await worker.claim_tasks(batch_size=count)
        await asyncio.gather(*(worker._execute_task(one, 120) for one in tasks))
        seconds = time.perf_counter() - started
        await worker.close()
        return seconds


async def _soon(seed: int, node: int) -> str:
    return answer(seed, node)
