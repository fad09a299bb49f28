"""Many runs at once, and one run alone: nodes and steps a second, beside the peers."""

from __future__ import annotations

from benchmarks.figures import (
    Figure,
    against_limit,
    against_peers,
    at_least,
    at_most,
    rates,
    times,
)
from benchmarks.measure import Bench, Series, Turn
from benchmarks.plan import Plan
from benchmarks.workload import NODES

SLOW = {"dbos-graph-postgres": 2, "absurd-async-postgres": 3, "temporal": 2}
SAVERS = ("saver-postgres", "savers-postgres")
ABSURDS = ("absurd-postgres", "absurd-async-postgres")


def measure(bench: Bench, plan: Plan) -> list[Figure]:
    """Measure PostgreSQL and the peers, then SQLite."""
    return [*_postgres(bench, plan), *_sqlite(bench, plan)]


def _together(bench: Bench, plan: Plan, systems: tuple[str, ...]) -> str:
    turns = [
        Turn(name, "batch", {"runs": plan.runs}, plan.runs * NODES, SLOW.get(name, 1),
             {"runs": min(5, plan.runs)})
        for name in systems
    ]  # fmt: skip
    bench.take_turns(turns, plan.rounds)
    return f"batch {plan.runs}"


def _alone(bench: Bench, plan: Plan, systems: tuple[str, ...]) -> str:
    turns = [Turn(name, "batch", {"runs": 1}, NODES) for name in systems]
    bench.take_turns(turns, plan.rounds * 2)
    return "batch 1"


def _commits(bench: Bench, plan: Plan, kind: str) -> str:
    turns = [
        Turn(f"{name}-{kind}", "commits", {"steps": plan.commits}, plan.commits, 1, {"steps": 20})
        for name in ("raw", "journal")
    ]
    bench.take_turns(turns, plan.commit_rounds)
    return f"commits {plan.commits}"


def _postgres(bench: Bench, plan: Plan) -> list[Figure]:
    ours = (
        "steps-postgres",
        "graph-postgres",
        "journal-postgres",
        "function-postgres",
        "llm-postgres",
    )
    peers = (*SAVERS, "dbos-postgres", "dbos-graph-postgres", *ABSURDS)
    label = _together(bench, plan, ("plain", *ours, *peers))
    for name in (*peers, "graph-postgres", "function-postgres", "llm-postgres"):
        if name not in SAVERS:
            bench.close(name)  # idle workers look for work, and take a little of the CPU
    _together(bench, plan, ("temporal",))  # by itself: its server works also when it is idle
    bench.close("temporal")

    def of(name: str) -> Series | None:
        return bench.of(name, label)

    steps, journal = of("steps-postgres"), of("journal-postgres")
    savers = [of(name) for name in SAVERS]
    at_once = f"{plan.runs} runs at once"

    def told(*systems: str) -> str:
        return rates(bench, label, systems, "nodes/s")

    figures = [
        Figure("steps_vs_plain", f"steps mode, {at_once} ÷ LangGraph without a checkpointer",
               against_limit(steps, of("plain")), at_least(0.80), "×", told("steps-postgres", "plain")),
        Figure("steps_vs_saver", f"steps mode, {at_once} ÷ AsyncPostgresSaver `sync`",
               against_peers(steps, savers), at_least(6), "×", told("steps-postgres", *SAVERS)),
        Figure("steps_vs_dbos", f"steps mode, {at_once} ÷ LangGraph nodes as DBOS steps",
               against_peers(steps, [of("dbos-graph-postgres")]), at_least(10), "×",
               told("steps-postgres", "dbos-graph-postgres")),
        Figure("steps_vs_temporal", f"steps mode, {at_once} ÷ Temporal's LangGraph plugin",
               against_peers(steps, [of("temporal")]), None, "×", told("steps-postgres", "temporal")),
        Figure("journal_vs_dbos", f"journal alone, {at_once} ÷ DBOS steps",
               against_peers(journal, [of("dbos-postgres")]), at_least(40), "×",
               told("journal-postgres", "dbos-postgres")),
        Figure("journal_vs_absurd", f"journal alone, {at_once} ÷ Absurd steps",
               against_peers(journal, [of(name) for name in ABSURDS]), at_least(4), "×",
               told("journal-postgres", *ABSURDS)),
        Figure("function_vs_dbos", f"a function agent, claim to settled, {at_once} ÷ DBOS steps",
               against_peers(of("function-postgres"), [of("dbos-postgres")]), None, "×",
               told("function-postgres", "dbos-postgres")),
        Figure("llm_vs_plain", f"steps mode with `ctx.llm`, {at_once} ÷ LangGraph without a checkpointer",
               against_limit(of("llm-postgres"), of("plain")), None, "×", told("llm-postgres", "plain")),
        Figure("graph_vs_saver", f"graph mode with fencing, {at_once} ÷ LangGraph's saver by itself",
               against_peers(of("graph-postgres"), savers), at_least(0.90), "×",
               told("graph-postgres", *SAVERS)),
    ]  # fmt: skip
    commits = _commits(bench, plan, "postgres")
    raw = bench.of("raw-postgres", commits)
    figures.append(
        Figure("journal_vs_commits", f"journal alone, {at_once} ÷ one-row commits of one connection",
               against_limit(journal, raw), at_least(4), "×",
               f"{told('journal-postgres')}, {rates(bench, commits, ['raw-postgres'], 'commits/s')}")
    )  # fmt: skip
    return [*figures, *_one_run(bench, plan, "postgres", commits, SAVERS)]


def _one_run(
    bench: Bench, plan: Plan, kind: str, commits: str, savers: tuple[str, ...]
) -> list[Figure]:
    pair = (f"journal-{kind}", f"raw-{kind}")
    step = against_limit(bench.of(pair[1], commits), bench.of(pair[0], commits))
    alone = _alone(bench, plan, ("plain", f"steps-{kind}", *savers))
    node = against_peers(bench.of(f"steps-{kind}", alone), [bench.of(s, alone) for s in savers])
    suffix = "" if kind == "postgres" else f"_{kind}"
    goals = (at_most(1.4), at_most(0.5)) if kind == "postgres" else (at_most(6), at_most(0.8))
    return [
        Figure(f"step_vs_commit{suffix}", "one run alone: journal step ÷ raw one-row commit",
               step, goals[0], "×", times(bench, commits, pair, "ms a step")),
        Figure(f"node_vs_saver{suffix}", f"steps mode, one run alone: ms a node ÷ {savers[0]} `sync`",
               None if node is None else 1 / node, goals[1], "×",
               times(bench, alone, (f"steps-{kind}", *savers, "plain"), "ms a node")),
    ]  # fmt: skip


def _sqlite(bench: Bench, plan: Plan) -> list[Figure]:
    ours = ("steps-sqlite", "graph-sqlite", "journal-sqlite", "function-sqlite")
    label = _together(bench, plan, ("plain", *ours, "saver-sqlite", "dbos-sqlite"))

    def of(name: str) -> Series | None:
        return bench.of(name, label)

    def told(*systems: str) -> str:
        return rates(bench, label, systems, "nodes/s")

    at_once = f"{plan.runs} runs at once"
    commits = _commits(bench, plan, "sqlite")
    raw = bench.of("raw-sqlite", commits)
    figures = [
        Figure("steps_vs_plain_sqlite", f"steps mode, {at_once} ÷ LangGraph without a checkpointer",
               against_limit(of("steps-sqlite"), of("plain")), at_least(0.75), "×",
               told("steps-sqlite", "plain")),
        Figure("steps_vs_saver_sqlite", f"steps mode, {at_once} ÷ AsyncSqliteSaver `sync`",
               against_peers(of("steps-sqlite"), [of("saver-sqlite")]), at_least(3), "×",
               told("steps-sqlite", "saver-sqlite")),
        Figure("journal_vs_dbos_sqlite", f"journal alone, {at_once} ÷ DBOS steps on SQLite",
               against_peers(of("journal-sqlite"), [of("dbos-sqlite")]), at_least(20), "×",
               told("journal-sqlite", "dbos-sqlite")),
        Figure("graph_vs_saver_sqlite", f"graph mode with fencing, {at_once} ÷ AsyncSqliteSaver by itself",
               against_peers(of("graph-sqlite"), [of("saver-sqlite")]), at_least(0.80), "×",
               told("graph-sqlite", "saver-sqlite")),
        Figure("journal_vs_commits_sqlite", f"journal alone, {at_once} ÷ one-row commits of one connection",
               against_limit(of("journal-sqlite"), raw), at_least(0.3), "×",
               f"{told('journal-sqlite')}, {rates(bench, commits, ['raw-sqlite'], 'commits/s')}"),
    ]  # fmt: skip
    return [*figures, *_one_run(bench, plan, "sqlite", commits, ("saver-sqlite",))]
