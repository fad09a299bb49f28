"""How many bytes are kept when the number of nodes that each add 2 KB doubles."""

from __future__ import annotations

from benchmarks.databases import bytes_kept
from benchmarks.figures import Curve, Figure, Goal, at_most
from benchmarks.measure import Bench
from benchmarks.plan import Plan

SIZE = 2_000


def measure(bench: Bench, plan: Plan) -> tuple[list[Figure], list[Curve]]:
    """Measure steps mode and LangGraph's savers, each size in a fresh database."""
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
    bench.close(name)  # the next one has a database of its own
    if name in bench.missing:
        return None
    url = bench.child(name).url
    # an empty graph has made the tables, so that they don't count
    if bench.ask(name, "grow", nodes=1, size=1) is None:
        return None
    before = bytes_kept(url)
    if bench.ask(name, "grow", nodes=nodes, size=SIZE) is None:
        return None
    return bytes_kept(url) - before


def _figure(name: str, curve: Curve, goal: Goal | None) -> Figure:
    sizes = [up for _, up in curve.points]
    grown = sizes[-1] / sizes[-2] if len(sizes) > 1 and sizes[-2] else None
    told = ", ".join(f"{across:g} nodes {up:.2f} MB" for across, up in curve.points)
    key = "bytes_doubled_" + name.replace("-", "_")
    return Figure(
        key, f"bytes kept, twice the nodes that each add 2 KB: {name}", grown, goal, "×", told
    )
