"""LangGraph by itself: without a checkpointer, and with its own savers (`sync`)."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import Any

from benchmarks.databases import is_postgres, path_of
from benchmarks.workload import (
    NODES,
    answer,
    chain,
    check,
    check_count,
    given,
    growing,
    loop,
    model,
)

SETTINGS = {"recursion_limit": 100_000}


class Plain:
    """No durability at all: the limit."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._graph = chain(model).compile()
        self._long = loop(model).compile()

    def batch(self, runs: int) -> dict[str, Any]:
        """Run the chain `runs` times at once."""
        return self._loop.run_until_complete(self._batch(runs))

    async def _batch(self, runs: int) -> dict[str, Any]:
        seeds = list(range(runs))
        started = time.perf_counter()
        outputs = await asyncio.gather(*(self._graph.ainvoke(given(seed)) for seed in seeds))
        seconds = time.perf_counter() - started
        check(outputs, seeds)
        return {"seconds": seconds}

    def replay(self, steps: int) -> dict[str, Any]:
        """Run a loop of `steps` steps: what a replay of them is compared with."""
        started = time.perf_counter()
        work = self._long.ainvoke({**given(1), "times": steps}, SETTINGS)
        output = self._loop.run_until_complete(work)
        seconds = time.perf_counter() - started
        check([output], [1], steps)
        return {"seconds": seconds}

    def close(self) -> None:
        """Nothing is open."""


class Saver:
    """One saver for all runs, as LangGraph's documentation shows it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._stack = contextlib.AsyncExitStack()
        self._loop.run_until_complete(self._open())
        self._builder = chain(model)

    async def _open(self) -> None:
        if is_postgres(self._url):
            from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

            opened: Any = AsyncPostgresSaver.from_conn_string(self._url)
        else:
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

            opened = AsyncSqliteSaver.from_conn_string(path_of(self._url))
        self._saver = await self._stack.enter_async_context(opened)
        await self._saver.setup()

    def _of_run(self) -> Any:
        return self._saver

    def batch(self, runs: int) -> dict[str, Any]:
        """Run the chain `runs` times at once, each on a thread of its own."""
        return self._loop.run_until_complete(self._batch(runs))

    async def _batch(self, runs: int) -> dict[str, Any]:
        seeds = list(range(runs))
        configs = [{"configurable": {"thread_id": uuid.uuid4().hex}} for _ in seeds]
        graphs = [self._builder.compile(checkpointer=self._of_run()) for _ in seeds]
        started = time.perf_counter()
        outputs = await asyncio.gather(
            *(
                graph.ainvoke(given(seed), config, durability="sync")
                for graph, seed, config in zip(graphs, seeds, configs, strict=True)
            )
        )
        seconds = time.perf_counter() - started
        check(outputs, seeds)
        kept = 0
        async for _ in self._saver.alist(configs[-1]):
            kept += 1
        check_count("checkpoints", kept, NODES + 2)
        return {"seconds": seconds}

    def grow(self, nodes: int, size: int) -> dict[str, Any]:
        """Run once a graph of nodes that each add a text to the state."""

        async def text(seed: int, node: int) -> str:
            return answer(seed, node, size)

        graph = growing(text, nodes).compile(checkpointer=self._saver)
        config = {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": nodes + 5}
        output = self._loop.run_until_complete(
            graph.ainvoke({"texts": []}, config, durability="sync")
        )
        check_count("texts", len(output["texts"]), nodes)
        return {"seconds": 0.0}

    def close(self) -> None:
        """Close the connection."""
        self._loop.run_until_complete(self._stack.aclose())


class SaverForEachRun(Saver):
    """A saver for each run over a pool: savers hold a lock, so this may be faster."""

    async def _open(self) -> None:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        pool: Any = AsyncConnectionPool(
            self._url, min_size=4, max_size=20, kwargs=options, open=False
        )
        self._pool = await self._stack.enter_async_context(pool)
        self._saver = AsyncPostgresSaver(self._pool)
        await self._saver.setup()

    def _of_run(self) -> Any:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        return AsyncPostgresSaver(self._pool)
