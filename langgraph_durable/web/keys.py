"""Routes of API keys: an operator makes, lists, rotates and revokes those of its tenant."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body

from langgraph_durable.errors import Forbidden, NotFound
from langgraph_durable.keys import OPERATOR, ApiKey
from langgraph_durable.web.answers import IssuedOut, KeyOut, Listed
from langgraph_durable.web.auth import Caller, Known
from langgraph_durable.web.bodies import KeyBody, RotateBody
from langgraph_durable.web.problems import ProblemRoute, responses

routes = APIRouter(prefix="/keys", tags=["keys"], route_class=ProblemRoute)

_MANAGING = "managing keys"


@routes.get("", responses=responses(403))
def list_keys(caller: Known) -> Listed[KeyOut]:
    """List the tenant's keys, oldest first, revoked and expired ones too."""
    caller.need(OPERATOR, _MANAGING)
    return Listed[KeyOut](items=[KeyOut.of(key) for key in _visible(caller)], next=None)


@routes.post("", status_code=201, responses=responses(403, 409, 413))
def create_key(caller: Known, body: KeyBody) -> IssuedOut:
    """Make a key for this tenant; its secret is in the answer and nowhere else."""
    caller.need(OPERATOR, _MANAGING)
    if caller.key.scopes and not (body.scopes and set(body.scopes) <= caller.key.scopes):
        raise Forbidden("making a key of a wider scope", OPERATOR)
    issued = caller.durable.keys.create(
        tenant=caller.tenant,
        roles=body.roles,
        scopes=body.scopes,
        name=body.name,
        expires_in_seconds=body.expires_in_seconds,
        by=caller.name,
    )
    return IssuedOut.made(issued)


@routes.post("/{key_id}/rotate", status_code=201, responses=responses(403, 404, 409, 413))
def rotate_key(
    caller: Known, key_id: str, body: Annotated[RotateBody | None, Body()] = None
) -> IssuedOut:
    """Replace a key by a new one of the same name, roles and scopes."""
    key = _managed(caller, key_id)
    grace = (body or RotateBody()).grace_seconds
    issued = caller.durable.keys.rotate(
        key.id, tenant=caller.tenant, grace_seconds=grace, by=caller.name
    )
    return IssuedOut.made(issued)


@routes.post("/{key_id}/revoke", responses=responses(403, 404))
def revoke_key(caller: Known, key_id: str) -> KeyOut:
    """End a key at once; again changes nothing."""
    key = _managed(caller, key_id)
    return KeyOut.of(caller.durable.keys.revoke(key.id, tenant=caller.tenant, by=caller.name))


def _visible(caller: Caller) -> list[ApiKey]:
    """Return the keys whose scope is inside the caller's."""
    keys, mine = caller.durable.keys.list(caller.tenant), caller.key.scopes
    return [key for key in keys if not mine or (key.scopes and key.scopes <= mine)]


def _managed(caller: Caller, key_id: str) -> ApiKey:
    for key in _visible(caller):
        if key.id == key_id:
            caller.need(OPERATOR, _MANAGING)
            return key
    raise NotFound("key", key_id)
