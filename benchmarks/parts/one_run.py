"""Replays, and a run of one step on an idle worker."""

from __future__ import annotations

from benchmarks.figures import (
    Curve,
    Figure,
    against_limit,
    against_peers,
    at_most,
    below,
    times,
)
from benchmarks.measure import Bench, Turn
from benchmarks.plan import Plan


def measure(bench: Bench, plan: Plan) -> tuple[list[Figure], list[Curve]]:
    """Measure both databases."""
    figures: list[Figure] = []
    curves: list[Curve] = []
    for kind in ("postgres", "sqlite"):
        figures += _replay(bench, plan, kind)
        figures += _idle(bench, plan, kind)
        curves.append(_growth(bench, plan, kind))
    return figures, curves


def _replay(bench: Bench, plan: Plan, kind: str) -> list[Figure]:
    steps = plan.replay_steps
    names = ("plain", f"steps-{kind}", f"dbos-{kind}")
    turns = [Turn(name, "replay", {"steps": steps}, steps, 1, {"steps": 20}) for name in names]
    function = Turn(f"steps-{kind}", "replay_function", {"steps": steps}, steps, 1, {"steps": 20})
    bench.take_turns([*turns, function], plan.replay_rounds)
    label = f"replay {steps}"
    plain, ours, dbos = (bench.of(name, label) for name in names)
    told = times(bench, label, names, "ms a step")
    of_function = bench.of(f"steps-{kind}", f"replay_function {steps}")
    as_workflow = against_peers(of_function, [dbos])
    suffix = "" if kind == "postgres" else f"_{kind}"
    slower = against_limit(plain, ours)  # of one run, so the seconds are compared
    faster = against_peers(ours, [dbos])
    return [
        Figure(f"replay_vs_plain{suffix}", f"replay of {steps:,} recorded steps ÷ the plain graph's time",
               slower, at_most(1.2), "×", told),
        Figure(f"replay_vs_dbos{suffix}", f"replay of {steps:,} recorded steps ÷ DBOS replaying them",
               None if faster is None else 1 / faster, at_most(0.3), "×", told),
        Figure(f"function_replay_vs_dbos{suffix}",
               f"replay of {steps:,} steps of a function agent ÷ DBOS replaying a workflow of them",
               None if as_workflow is None else 1 / as_workflow, at_most(0.3), "×",
               f"{of_function.median * 1000:.2f} ms a step" if of_function else ""),
    ]  # fmt: skip


def _growth(bench: Bench, plan: Plan, kind: str) -> Curve:
    curve = Curve(f"replay-{kind}", f"Replay, {kind}", "recorded steps", "seconds")
    for steps in plan.replay_curve:
        found = bench.ask(f"steps-{kind}", "replay", steps=steps)
        if found is not None:
            curve.points.append((steps, found["seconds"]))
    return curve


def _idle(bench: Bench, plan: Plan, kind: str) -> list[Figure]:
    suffix = "" if kind == "postgres" else f"_{kind}"
    commits = bench.of(f"raw-{kind}", f"commits {plan.commits}")
    commit = f"{commits.median * 1000:.2f}" if commits else "–"
    ours = bench.ask(f"steps-{kind}", "one_step", times=plan.one_steps)
    dbos = bench.ask(f"dbos-{kind}", "one_step", times=plan.one_steps)
    idle = bench.ask(f"steps-{kind}", "idle", seconds=plan.idle_seconds)
    mine = ours["seconds"] if ours else None
    told = []
    if mine is not None:
        told.append(f"ours {mine * 1000:.0f} ms")
    if dbos is not None:
        told.append(f"DBOS from a queue {dbos['seconds'] * 1000:.0f} ms, "
                    f"started in the process itself {dbos['here'] * 1000:.0f} ms")  # fmt: skip
    first = ours["first_step"] * 1000 if ours else None
    last = f"95 % below {ours['first_step_95'] * 1000:.1f} ms, " if ours else ""
    return [
        Figure(f"one_step_vs_dbos{suffix}", "one-step run, submit to result, idle worker ÷ DBOS",
               mine / dbos["seconds"] if mine and dbos else None, at_most(0.3), "×", "; ".join(told)),
        Figure(f"first_step_ms{suffix}", "submit to first step, idle worker", first, below(20), "ms",
               f"{last}a raw commit took {commit} ms"),
        Figure(f"idle_queries{suffix}", "idle worker: queries a second",
               idle["queries"] / idle["seconds"] if idle else None, below(2), "/s"),
    ]  # fmt: skip
