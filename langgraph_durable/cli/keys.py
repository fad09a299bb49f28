"""`langgraph-durable keys …`: who may call, for which tenant."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any

import typer

from langgraph_durable.cli.options import (
    AppOption,
    ByOption,
    DbOption,
    JsonOption,
    TenantOption,
    open_durable,
)
from langgraph_durable.cli.printing import at, complain, print_json, print_table, say
from langgraph_durable.keys import ApiKey, Issued

commands = typer.Typer(help="API keys: who may call, for which tenant.", no_args_is_help=True)


@commands.command("create")
def keys_create(
    tenant: Annotated[str, typer.Option(help="Whose runs it sees.")],
    name: Annotated[str, typer.Option(help="How the audit calls who uses it.")],
    role: Annotated[
        list[str],
        typer.Option(help="agent, supervisor, operator or an approver's role; repeat it."),
    ],
    scope: Annotated[
        list[str] | None, typer.Option(help="agent:<name>, to limit it to that agent; repeat it.")
    ] = None,
    expires_in_days: Annotated[float | None, typer.Option(help="By default it doesn't.")] = None,
    app_path: AppOption = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an API key. Its secret is printed this once; only its digest is kept."""
    issued = open_durable(app_path, db).keys.create(
        tenant=tenant,
        name=name,
        roles=role,
        scopes=scope or (),
        expires_in_seconds=None if expires_in_days is None else expires_in_days * 86_400,
        by="command line",
    )
    _print_issued(issued, as_json)


@commands.command("list")
def keys_list(
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """List keys, oldest first, revoked and expired ones too."""
    found = [_key_data(key) for key in open_durable(app_path, db).keys.list(tenant)]
    if as_json:
        print_json(found)
        return
    print_table(
        ("key", "tenant", "name", "roles", "scopes", "live", "created", "expires"),
        [
            [k["id"], k["tenant"], k["name"], ", ".join(k["roles"]), ", ".join(k["scopes"]) or "all",
             "yes" if k["is_live"] else "no", at(k["created_at"]),
             at(k["expires_at"]) if k["expires_at"] else "-"]
            for k in found
        ],
    )  # fmt: skip


@commands.command("rotate")
def keys_rotate(
    key_id: str,
    grace_hours: Annotated[
        float, typer.Option(min=0, help="How long the old secret works on; 0 ends it at once.")
    ] = 0.0,
    by: ByOption = "command line",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a key by a new one of the same name, roles and scopes; its secret is shown once."""
    issued = open_durable(app_path, db).keys.rotate(
        key_id, tenant=tenant, grace_seconds=grace_hours * 3600, by=by
    )
    _print_issued(issued, as_json)
    if not as_json:
        until = f"works for {grace_hours:g} hours more" if grace_hours else "has ended"
        complain(f"the old key {key_id} {until}")


@commands.command("revoke")
def keys_revoke(
    key_id: str,
    by: ByOption = "command line",
    app_path: AppOption = None,
    db: DbOption = None,
    tenant: TenantOption = None,
) -> None:
    """End a key at once."""
    key = open_durable(app_path, db).keys.revoke(key_id, tenant=tenant, by=by)
    say(f"key {key.id} ({key.name}) is revoked")


def _print_issued(issued: Issued, as_json: bool) -> None:
    if as_json:
        print_json({**_key_data(issued.key), "secret": issued.secret})
        return
    key = issued.key
    complain(f"key {key.id} of tenant {key.tenant}; keep its secret, it is not shown again:")
    sys.stdout.write(issued.secret + "\n")
    sys.stdout.flush()


def _key_data(key: ApiKey) -> dict[str, Any]:
    data = dataclasses.asdict(key)
    return {**data, "roles": sorted(key.roles), "scopes": sorted(key.scopes)}
