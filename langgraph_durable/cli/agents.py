"""What code says of itself: agents and their ADRs, lint, the report before a migration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from langgraph_durable import lint
from langgraph_durable.app import Durable
from langgraph_durable.cli.options import JsonOption, NeededAppOption, imported, load
from langgraph_durable.cli.printing import print_json, print_table, say

commands = typer.Typer()


@commands.command()
def agents(
    app_path: NeededAppOption,
    root: Annotated[str, typer.Option(help="The folder that ADR paths start from.")] = ".",
    as_json: JsonOption = False,
) -> None:
    """List agents with version, mode and ADR; fail where an ADR is missing or disagrees."""
    durable = load(app_path)
    problems = durable.check_adrs(root)
    listed = [
        {
            "name": agent.name,
            "version": agent.version,
            "mode": agent.mode,
            "adr": agent.adr,
            "problem": problems.get(f"{agent.name} {agent.version}"),
        }
        for agent in durable.agents
    ]
    if as_json:
        print_json(listed)
    else:
        shown = [
            [a["name"], a["version"], a["mode"], a["adr"] or "-", a["problem"] or "ok"]
            for a in listed
        ]
        print_table(("agent", "version", "mode", "ADR", "check"), shown)
    if problems:
        raise typer.Exit(1)


@commands.command("lint")
def lint_command(
    target: Annotated[str, typer.Argument(help="package.module:name of a graph or a Durable.")],
    as_json: JsonOption = False,
) -> None:
    """Name the lines that would differ on replay or write twice; exit with 1 if there are any."""
    found = [f for graph in _graphs(target).values() for f in lint.check(graph)]
    app = imported(target)
    if isinstance(app, Durable):
        found += lint.check(app.services.tools)
    if as_json:
        print_json(found)
    else:
        for finding in found:
            say(str(finding))
        say(f"{len(found)} lines to change" if found else "nothing to change")
    if found:
        raise typer.Exit(1)


@commands.command("migrate-report")
def migrate_report(
    target: Annotated[str, typer.Argument(help="package.module:name of a graph or a Durable.")],
    adr: Annotated[bool, typer.Option("--adr", help="Print a draft of the ADR instead.")] = False,
) -> None:
    """Say, node by node, what must change to go from graph mode to steps mode."""
    for name, graph in _graphs(target).items():
        report = lint.migration_report(graph, name)
        text = report.adr() if adr else "\n".join([f"{name}:", *report.lines()])
        say(text)


def _graphs(target: str) -> Mapping[str, object]:
    """Return what `package.module:name` names, or the agents of a Durable by name."""
    found = imported(target)
    if not isinstance(found, Durable):
        return {target.rpartition(":")[2]: found}
    return {f"{a.name} {a.version}": a.graph or a.function for a in found.agents}
