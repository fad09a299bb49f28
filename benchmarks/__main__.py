"""`python -m benchmarks`: measure, print the table, write the page and the plots.

The last line is one JSON object of all ratios.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

from benchmarks import report
from benchmarks.databases import Databases
from benchmarks.figures import Curve, Figure
from benchmarks.measure import ROOT, Bench
from benchmarks.parts import many, one_run, storage, throughput
from benchmarks.plan import PLANS, Plan

PARTS = ("throughput", "one_run", "storage", "many")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _measured(bench: Bench, plan: Plan, parts: list[str]) -> tuple[list[Figure], list[Curve]]:
    figures: list[Figure] = []
    curves: list[Curve] = []
    for name in parts:
        started = time.perf_counter()
        _say(f"{name} …")
        if name == "throughput":
            figures += throughput.measure(bench, plan)
        else:
            part = {"one_run": one_run, "storage": storage, "many": many}[name]
            found, drawn = part.measure(bench, plan)
            figures += found
            curves += drawn
        bench.close()
        _say(f"{name}: {time.perf_counter() - started:.0f} s")
    return figures, curves


def main() -> int:
    """Run what was asked for."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--plan", choices=list(PLANS), default="full")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part only")
    parser.add_argument(
        "--page", action="store_true", help="write docs/benchmarks.md and its plots"
    )
    parser.add_argument("--profile", action="store_true", help="profile the hot path as well")
    parser.add_argument("--out", type=Path, default=ROOT / "var" / "bench")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.profile:
        from benchmarks.hot_path import profile

        _say(f"profile: {profile(asked.out, PLANS[asked.plan].runs)}")
    databases = Databases()
    bench = Bench(databases.fresh, asked.out / "logs", _say)
    facts = {**databases.settings, **report.versions()}
    try:
        figures, curves = _measured(bench, PLANS[asked.plan], asked.only or list(PARTS))
    finally:
        bench.close()
        databases.close()
    report.save(asked.out, figures, curves, bench, facts)
    images = ROOT / "docs" / "images" if asked.page else asked.out
    drawn = report.plots(images, curves)
    if asked.page:
        command = "make bench" + (" QUICK=1" if asked.plan == "quick" else "")
        text = report.record(figures, bench, facts, command, drawn)
        report.write_page(ROOT / "docs" / "benchmarks.md", text)
    print(report.table(figures))
    for name, why in bench.missing.items():
        print(f"{name} has no figures: {why}")
    print(report.ratios(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
