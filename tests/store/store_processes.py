"""What tests of the store run in processes of their own (real ones: they can be killed)."""

from __future__ import annotations

import json
import logging
import multiprocessing
import sqlite3
import time
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from langgraph_durable.runs import Done, Step
from langgraph_durable.store import RunStore, Served, open_engine


def context() -> ForkServerContext:
    """Return where processes come from: a server that has imported the package once."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["store_processes", "langgraph_durable.store"])
    return made


def started(target: Any, *args: Any) -> ForkServerProcess:
    """Start a process."""
    process = context().Process(target=target, args=args, daemon=True)
    process.start()
    return process


def upgrade(url: str, barrier: Any, told: Any) -> None:
    """Bring a schema up at the same instant as others."""
    store = RunStore(open_engine(url))
    barrier.wait(60)
    try:
        store.upgrade()
        store.check_schema()
    except BaseException as error:  # the parent is told
        told.put(repr(error))
    else:
        told.put("ok")


def work(url: str, name: str, told: Any) -> None:
    """Claim, record three steps, settle, until all runs have ended; report what was logged."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    store = RunStore(open_engine(url))
    done: list[str] = []
    try:
        while True:
            claim = store.claim(name, 60, Served([("a", "1")]))
            if claim is None:
                if not _unfinished(store):
                    break
                time.sleep(0.02)
                continue
            for seq in (1, 2, 3):
                value = json.dumps([name, claim.lease.epoch])
                store.put_step(claim.lease, Step(f"s{seq}", "once", value=value, seq=seq))
            store.settle(claim.lease, Done("1"))
            done.append(claim.run.id)
    except BaseException as error:  # the parent is told
        lines.append(repr(error))
    told.put((name, done, lines))


def _unfinished(store: RunStore) -> bool:
    query = "SELECT count(*) FROM runs WHERE finished_at IS NULL"
    with store.engine.connect().execution_options(reads_only=True) as tx:
        return bool(tx.exec_driver_sql(query).scalar_one())


def hold_the_write_lock(path: str, seconds: float, held: Any) -> None:
    """Keep everybody else from writing to a SQLite file for a while."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    held.set()
    time.sleep(seconds)
    connection.execute("COMMIT")
    connection.close()


def die_in_a_transaction(path: str, held: Any) -> None:
    """Write, say so, and wait to be killed before the commit."""
    store = RunStore(open_engine(f"sqlite:///{path}"))
    with store.engine.begin() as tx:
        tx.exec_driver_sql("UPDATE runs SET status = 'failed'")
        held.set()
        time.sleep(60)
