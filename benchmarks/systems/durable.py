"""This package, as an application uses it: a worker that serves, runs submitted to it.

A batch is submitted to a version of the agent that the worker hasn't got, and then moved to
the one it has, by one statement: so `runs` runs become claimable at one instant, and what is
timed is the worker's part, from the claim of the first to the settling of the last. What
submitting took is told beside it.
"""

from __future__ import annotations

import statistics
import threading
import time
from functools import partial
from typing import Any

import sqlalchemy as sa
from langchain_core.messages import AIMessage

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
from langgraph_durable import Durable, Retry, Status, Worker, current_run
from langgraph_durable.store.wakeups import notify

HELD, SERVED = "held", "1"
LONG = {"recursion_limit": 100_000}


async def step(seed: int, node: int) -> str:
    """Make a model call as a journaled step."""
    said: str = await current_run().once(f"n{node}", partial(model, seed, node))
    return said


class Durably:
    """What the modes have in common: a worker in a thread, and the timing of a batch."""

    mode: Any = "steps"
    steps_a_run = NODES
    concurrency = 50

    def __init__(self, url: str) -> None:
        self.url = url
        self.durable = Durable(url, **self.options())
        self.client = Durable(url)  # as another process would have it
        self._left = 0
        self._last = threading.Event()
        self.register(self.durable, SERVED)
        self.register(self.client, SERVED)
        self.register(self.client, HELD)
        self.first_step_at = 0.0
        self.worker: Worker | None = None
        self._thread: threading.Thread | None = None

    def options(self) -> dict[str, Any]:
        """Return what the worker's Durable is made with."""
        return {}

    def register(self, durable: Durable, version: str) -> None:
        """Register the chain."""
        durable.graph("chain", chain(self.counted), mode=self.mode, version=version)

    async def step(self, seed: int, node: int) -> str:
        """Make the step of a node."""
        return await step(seed, node)

    async def counted(self, seed: int, node: int) -> str:
        """Make the step of a node, and see when the last one has begun."""
        if node == 0:
            self.first_step_at = time.perf_counter()
        said = await self.step(seed, node)
        if node == NODES - 1:
            self._left -= 1
            if self._left <= 0:
                self._last.set()
        return said

    # --- the worker --------------------------------------------------------------------

    def serve(self) -> None:
        """Start the worker, unless it runs."""
        if self._thread is None:
            self.worker = Worker(self.durable, concurrency=self.concurrency)
            self._thread = threading.Thread(target=self.worker.serve, daemon=True)
            self._thread.start()
            time.sleep(1.0)

    def rest(self) -> None:
        """Stop the worker."""
        if self._thread is not None and self.worker is not None:
            self.worker.stop()
            self._thread.join(20)
            self._thread = None

    # --- jobs --------------------------------------------------------------------------

    def batch(self, runs: int) -> dict[str, Any]:
        """Run the chain `runs` times at once."""
        self.serve()
        seeds = list(range(runs))
        self._left = runs
        self._last.clear()
        started = time.perf_counter()
        ids = [self.client.submit("chain", given(seed), version=HELD) for seed in seeds]
        submitted = time.perf_counter() - started
        started = time.perf_counter()
        self._release()
        if not self._last.wait(120):
            raise TimeoutError("the last node of the last run did not run in 120 s")
        self._until_done(ids)
        seconds = time.perf_counter() - started
        self.check(ids, seeds)
        return {"seconds": seconds, "submit_seconds": submitted}

    def _release(self) -> None:
        """Make the runs that are held claimable, at once."""
        with self.client.store.engine.begin() as tx:
            tx.execute(sa.text("UPDATE runs SET version = :served WHERE version = :held"),
                       {"served": SERVED, "held": HELD})  # fmt: skip
            notify(tx)

    def _until_done(self, ids: list[str]) -> None:
        query = sa.text("SELECT count(*) FROM runs WHERE status IN ('queued', 'running')")
        until = time.monotonic() + 60
        with self.client.store.engine.connect().execution_options(reads_only=True) as connection:
            while time.monotonic() < until:
                if connection.execute(query).scalar_one() == 0:
                    return
                connection.rollback()
                time.sleep(0.002)
        raise TimeoutError("the runs did not end in 60 s")

    def check(self, ids: list[str], seeds: list[int]) -> None:
        """Look at the results, and at the number of recorded steps."""
        found = [self.client.get(run_id) for run_id in ids]
        for run in found:
            if run.status is not Status.SUCCEEDED:
                raise AssertionError(f"run {run.id} is {run.status}: {run.error}")
        check([run.output for run in found], seeds)
        self.check_records(ids)

    def check_records(self, ids: list[str]) -> None:
        """Count the recorded steps."""
        check_count("steps", self._count("steps", "run_id", ids), self.steps_a_run * len(ids))

    def _count(self, table: str, column: str, ids: list[str]) -> int:
        counting = sa.select(sa.func.count()).select_from(sa.table(table))
        counting = counting.where(sa.column(column).in_(ids))
        with self.client.store.engine.connect() as connection:
            return connection.execute(counting).scalar_one()

    def close(self) -> None:
        """Stop the worker."""
        self.rest()


class Steps(Durably):
    """Steps mode; and the jobs that are about one run or the idle worker."""

    def register(self, durable: Durable, version: str) -> None:
        """Register the chain, and the agents of the other jobs."""
        super().register(durable, version)
        durable.graph("long", loop(self._long_step).compile().with_config(LONG), mode="steps",
                      version=version, retry=Retry(first_seconds=0), max_attempts=5)  # fmt: skip
        durable.agent("one", version=version)(self._one)
        durable.agent("function", version=version, retry=Retry(first_seconds=0), max_attempts=5)(
            self._long_function
        )

    async def _long_function(self, ctx: Any, state: Any) -> Any:
        said = ""
        for node in range(state["times"]):
            said = await self._long_step(state["seed"], node)
        return {**state, "answer": said, "count": state["times"]}

    async def _one(self, ctx: Any, given_: Any) -> Any:
        self.first_step_at = time.perf_counter()
        return await ctx.once("n0", partial(model, given_, 0))

    async def _long_step(self, seed: int, node: int) -> str:
        said = await step(seed, node)
        if node == self._stop_at:
            self._stop_at = -1
            raise RuntimeError("the worker died here")
        return said

    _stop_at = -1

    def replay(self, steps: int) -> dict[str, Any]:
        """Record a long run up to its end, which fails; time the pass that replays it."""
        return self._replay("long", steps)

    def replay_function(self, steps: int) -> dict[str, Any]:
        """The same with a plain function, as a workflow of DBOS is one."""
        return self._replay("function", steps)

    def _replay(self, agent: str, steps: int) -> dict[str, Any]:
        self.rest()
        self._stop_at = steps - 1
        worker = Worker(self.durable)
        run_id = self.client.submit(agent, {**given(1), "times": steps}, version=SERVED)
        worker.run_once()
        check_count("steps", self._count("steps", "run_id", [run_id]), steps)
        started = time.perf_counter()
        worker.run_once()
        seconds = time.perf_counter() - started
        run = self.client.get(run_id)
        check([run.output or {"error": run.error}], [1], steps)
        if run.usage is not None:
            check_count("replayed steps", run.usage.saved_steps, steps)
        return {"seconds": seconds}

    def one_step(self, times: int) -> dict[str, Any]:
        """Submit a run of one step to the idle worker and wait for its result."""
        self.serve()
        waited, started_after = [], []
        for seed in range(times):
            time.sleep(0.05)
            started = time.perf_counter()
            run_id = self.client.submit("one", seed, version=SERVED)
            run = self.client.wait(run_id)
            waited.append(time.perf_counter() - started)
            started_after.append(self.first_step_at - started)
            if run.output != answer(seed, 0):
                raise AssertionError(f"run {run_id} is {run.status}: {run.output!r} {run.error}")
        return {
            "seconds": statistics.median(waited),
            "first_step": statistics.median(started_after),
            "first_step_95": sorted(started_after)[int(len(started_after) * 0.95)],
        }

    def idle(self, seconds: float) -> dict[str, Any]:
        """Count what an idle worker asks of the database."""
        self.serve()
        time.sleep(3)
        counted = [0]

        def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            # PostgreSQL's driver says BEGIN by itself, and SQLAlchemy doesn't tell of it
            counted[0] += not statement.startswith("BEGIN")

        engine = self.durable.store.engine
        sa.event.listen(engine, "before_cursor_execute", count)
        time.sleep(seconds)
        sa.event.remove(engine, "before_cursor_execute", count)
        return {"seconds": seconds, "queries": counted[0]}

    def grow(self, nodes: int, size: int) -> dict[str, Any]:
        """Run once a graph of nodes that each add a text to the state."""

        async def text(seed: int, node: int) -> str:
            async def make() -> str:
                return answer(seed, node, size)

            said: str = await current_run().once(f"n{node}", make)
            return said

        self.rest()
        name = f"growing{len(self.durable.agents)}"
        self.durable.graph(name, growing(text, nodes).compile().with_config(LONG), mode="steps")
        run_id = self.durable.submit(name, {"texts": []})
        Worker(self.durable).run_once()
        run = self.durable.get(run_id)
        check_count("steps", self._count("steps", "run_id", [run_id]), nodes)
        check_count("texts", len((run.output or {"texts": ()})["texts"]), nodes)
        return {"seconds": 0.0}


class Llm(Durably):
    """Steps mode with `ctx.llm`, as an agent has it: messages in, a message out."""

    def options(self) -> dict[str, Any]:
        """A model that answers at once."""
        return {"models": {"default": _answer_at_once}}

    async def step(self, seed: int, node: int) -> str:
        """Ask the model of a route."""
        message = await current_run().llm(f"n{node}", [("user", f"{seed} {node}")])
        return str(message.content)


def _answer_at_once(messages: Any, route: str) -> AIMessage:
    seed, _, node = messages[-1].content.partition(" ")
    return AIMessage(answer(int(seed), int(node)))


class Function(Durably):
    """A plain async function of as many steps: the product without LangGraph."""

    def register(self, durable: Durable, version: str) -> None:
        """Register the function."""
        durable.agent("chain", version=version)(self._function)

    async def _function(self, ctx: Any, state: Any) -> Any:
        said = ""
        for node in range(NODES):
            said = await self.counted(state["seed"], node)
        return {**state, "answer": said, "count": NODES}


class Graph(Durably):
    """Graph mode: the graph as it is, on LangGraph's saver, fenced."""

    mode = "graph"

    async def step(self, seed: int, node: int) -> str:
        """The graph knows nothing of us."""
        return await model(seed, node)

    def check_records(self, ids: list[str]) -> None:
        """Count the checkpoints of the last run."""
        kept = self._count("checkpoints", "thread_id", self._threads(ids[-1]))
        check_count("checkpoints", kept, NODES + 2)

    def _threads(self, run_id: str) -> list[str]:
        with self.client.store.engine.connect() as connection:
            names = connection.execute(sa.text("SELECT DISTINCT thread_id FROM checkpoints"))
            return [name for (name,) in names if run_id in name]
