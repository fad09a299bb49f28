"""How many bytes are kept when the number of nodes that each add 2 KB doubles."""

from __future__ import annotations

from benchmarks.databases import bytes_kept
from benchmarks.figures import Curve, Figure, Goal, at_most
from benchmarks.measure import Bench
from benchmarks.plan import Plan

SIZE = 2_000
RUNS = 4  # of each size, because tables grow by pages


def measure(bench: Bench, plan: Plan) -> tuple[list[Figure], list[Curve]]:
    """Measure steps mode and LangGraph's savers."""
    figures: list[Figure] = []
    curves: list[Curve] = []
    for kind in ("postgres", "sqlite"):
        for name, goal in ((f"steps-{kind}", at_most(2.1)), (f"saver-{kind}", None)):
            curve = Curve(
                f"bytes-{name}", f"Bytes kept, {name}", "nodes that each add 2 KB", "megabytes"
            )
            for nodes in plan.storage_nodes:
                kept = _kept(bench, name, nodes)
                if kept is not None:
                    curve.points.append((nodes, kept / 1e6))
            curves.append(curve)
            figures.append(_figure(name, curve, goal))
    return figures, curves


def _kept(bench: Bench, name: str, nodes: int) -> int | None:
    """Return by how much a run lets the database grow; an earlier run has made the tables and their maps."""
    if bench.ask(name, "grow", nodes=10, size=SIZE) is None:
        return None
    url = bench.child(name).url
    before = bytes_kept(url)
    for _ in range(RUNS):
        if bench.ask(name, "grow", nodes=nodes, size=SIZE) is None:
            return None
    return (bytes_kept(url) - before) // RUNS


def _figure(name: str, curve: Curve, goal: Goal | None) -> Figure:
    sizes = [up for _, up in curve.points]
    grown = sizes[-1] / sizes[-2] if len(sizes) > 1 and sizes[-2] else None
    told = ", ".join(f"{across:g} nodes {up:.2f} MB" for across, up in curve.points)
    key = "bytes_doubled_" + name.replace("-", "_")
    return Figure(
        key, f"bytes kept, twice the nodes that each add 2 KB: {name}", grown, goal, "×", told
    )
