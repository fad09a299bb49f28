"""A million runs in the database, many workers, many runs in flight, a long journal."""

from __future__ import annotations

from benchmarks.databases import bytes_kept
from benchmarks.figures import Curve, Figure, at_least, at_most
from benchmarks.measure import Bench
from benchmarks.plan import Plan
from benchmarks.workload import NODES


def measure(bench: Bench, plan: Plan) -> tuple[list[Figure], list[Curve]]:
    """Measure both databases."""
    figures: list[Figure] = []
    curves: list[Curve] = []
    for kind in ("postgres", "sqlite"):
        for part in (_filled, _crowd):
            found, drawn = part(bench, plan, kind)
            figures += found
            curves += drawn
        figures += _memory(bench, plan, kind)
    return figures, curves


def _filled(bench: Bench, plan: Plan, kind: str) -> tuple[list[Figure], list[Curve]]:
    name = f"filled-{kind}"
    curves = [
        Curve(f"claims-{kind}", f"Claim latency, {kind}", "runs in the database", "milliseconds"),
        Curve(f"batches-{kind}", f"Throughput, {kind}", "runs in the database", "nodes a second"),
        Curve(f"kept-{kind}", f"Bytes, {kind}", "runs in the database", "megabytes"),
    ]
    bench.ask(name, "claims", times=plan.claims)  # warms up
    empty = bench.ask(name, "claims", times=plan.claims)
    bench.ask(name, "batch", runs=5)
    full = None
    for finished, before in zip(plan.finished, (0, *plan.finished), strict=False):
        is_last = finished == plan.finished[-1]
        if bench.ask(
            name, "fill", finished=finished - before, parked=plan.parked if is_last else 0
        ):
            full = _point(bench, plan, name, finished + (plan.parked if is_last else 0), curves)
    suffix = "" if kind == "postgres" else f"_{kind}"
    value, told = None, ""
    if empty and full:
        value = full / empty["seconds"]
        told = f"{full * 1000:.2f} ms, with an empty table {empty['seconds'] * 1000:.2f} ms"
    what = (
        f"claim latency with {plan.finished[-1]:,} finished and {plan.parked:,} parked runs ÷ empty"
    )
    bench.close(name)
    return [Figure(f"claim_vs_empty{suffix}", what, value, at_most(1.5), "×", told)], curves


def _point(bench: Bench, plan: Plan, name: str, runs: int, curves: list[Curve]) -> float | None:
    bench.ask(name, "claims", times=10)
    claims = bench.ask(name, "claims", times=plan.claims)
    batch = bench.ask(name, "batch", runs=plan.runs)
    if claims is None or batch is None:
        return None
    kept = bytes_kept(bench.child(name).url) / 1e6
    ups = (claims["seconds"] * 1000, plan.runs * NODES / batch["seconds"], kept)
    for curve, up in zip(curves, ups, strict=True):
        curve.points.append((runs, up))
    return float(claims["seconds"])


def _crowd(bench: Bench, plan: Plan, kind: str) -> tuple[list[Figure], list[Curve]]:
    name = f"crowd-{kind}"
    curve = Curve(f"workers-{kind}", f"Workers, {kind}", "worker processes", "steps a second")
    found = []
    for workers in plan.crowds:
        took = bench.ask(name, "crowd", workers=workers, runs=plan.crowd_runs)
        if took is not None:
            rate = workers * plan.crowd_runs * NODES / took["seconds"]
            curve.points.append((workers, rate))
            found.append((workers, rate, took["busy"], took["lock_waits"]))
    bench.close(name)
    told = ", ".join(
        f"{w} workers {rate:,.0f} steps/s (CPU {busy:.0%})" for w, rate, busy, _ in found
    )
    grown = found[-1][1] / found[0][1] if len(found) > 1 else None
    suffix = "" if kind == "postgres" else f"_{kind}"
    figures = [
        Figure(f"workers{suffix}", f"{plan.crowds[-1]} worker processes ÷ 1, steps wait 50 ms",
               grown, at_least(2), "×", told),
    ]  # fmt: skip
    if kind == "postgres":
        waits = max((locks for *_, locks in found), default=None)
        figures.append(Figure("lock_waits", "…: active backends that wait for a lock",
                              None if waits is None else waits * 100, at_most(1), "%"))  # fmt: skip
    return figures, [curve]


def _memory(bench: Bench, plan: Plan, kind: str) -> list[Figure]:
    name = f"memory-{kind}"
    flying = bench.ask(name, "in_flight", runs=plan.in_flight)
    bench.close(name)
    replayed = bench.ask(name, "replay", steps=plan.long_steps, size=10_000)
    bench.close(name)
    suffix = "" if kind == "postgres" else f"_{kind}"
    return [
        Figure(f"memory_mb{suffix}", f"memory of a worker with {plan.in_flight:,} runs in flight",
               flying["megabytes"] if flying else None, at_most(400), "MB",
               f"{flying['before']:.0f} MB before" if flying else ""),
        Figure(f"replay_memory{suffix}", f"memory to replay {plan.long_steps:,} steps of 10 KB ÷ their size",
               replayed["times"] if replayed else None, at_most(3), "×",
               f"{replayed['megabytes']:.0f} MB" if replayed else ""),
    ]  # fmt: skip
