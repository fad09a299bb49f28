"""`langgraph-durable rules …`: the rules that decisions carried."""

from __future__ import annotations

import json

import typer

from langgraph_durable.cli.options import (
    AppOption,
    ByOption,
    DbOption,
    JsonOption,
    TenantOption,
    open_durable,
)
from langgraph_durable.cli.printing import at, print_json, print_table, say

commands = typer.Typer(help="Rules that decisions carried.", no_args_is_help=True)


@commands.command("list")
def rules_list(
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the rules that decisions carried, oldest first, ended ones too."""
    found = open_durable(app_path, db).rules(tenant)
    if as_json:
        print_json(found)
        return
    print_table(
        ("rule", "tenant", "says", "made by", "at", "until", "live"),
        [
            [r.id, r.tenant, json.dumps(r.data, ensure_ascii=False), r.made_by, at(r.made_at),
             at(r.expires_at) if r.expires_at else "-", "yes" if r.is_live else "no"]
            for r in found
        ],
    )  # fmt: skip


@commands.command("revoke")
def rules_revoke(
    rule_id: str,
    by: ByOption = "command line",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a rule at once; again changes nothing."""
    rule = open_durable(app_path, db).revoke_rule(rule_id, by=by, tenant=tenant)
    if as_json:
        print_json(rule)
        return
    say(f"rule {rule.id} is revoked by {rule.revoked_by}")
