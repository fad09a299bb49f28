"""A profile of the hot path, kept beside the figures: `python -m benchmarks --profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.databases import Databases
from benchmarks.systems.durable import Steps
from langgraph_durable import Worker


def profile(folder: Path, runs: int) -> Path:
    """Profile the worker's loop over batches of steps mode on PostgreSQL; returns the file."""
    from pyinstrument import Profiler

    databases = Databases()
    profiler = Profiler(interval=0.0005, async_mode="disabled")
    serve: Any = Worker.serve

    def profiled(worker: Worker) -> bool:
        with profiler:
            return bool(serve(worker))

    try:
        system = Steps(databases.fresh("postgres"))
        system.batch(runs)
        system.rest()
        Worker.serve = profiled  # type: ignore[method-assign]  # this process only profiles
        for _ in range(3):
            system.batch(runs)
        system.rest()
        Worker.serve = serve  # type: ignore[method-assign]
    finally:
        databases.close()
    path = folder / "hot-path.txt"
    path.write_text(profiler.output_text(unicode=True, color=False, show_all=False))
    return path
