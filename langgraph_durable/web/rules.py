"""Routes of the rules that decisions carried: read them, end one."""

from __future__ import annotations

from fastapi import APIRouter

from langgraph_durable.web.answers import Listed, RuleOut
from langgraph_durable.web.auth import Known
from langgraph_durable.web.problems import ProblemRoute, responses

routes = APIRouter(prefix="/rules", tags=["rules"], route_class=ProblemRoute)


@routes.get("", responses=responses())
def list_rules(caller: Known) -> Listed[RuleOut]:
    """List the rules that decisions carried, oldest first, ended ones too."""
    return Listed[RuleOut](items=[RuleOut.of(rule) for rule in caller.rules()], next=None)


@routes.get("/{rule_id}", responses=responses(404))
def read_rule(caller: Known, rule_id: str) -> RuleOut:
    """Read a rule: what it says, who made it on which question, and until when."""
    return RuleOut.of(caller.rule(rule_id))


@routes.post("/{rule_id}/revoke", responses=responses(403, 404))
def revoke_rule(caller: Known, rule_id: str) -> RuleOut:
    """End a rule at once; again changes nothing."""
    return RuleOut.of(caller.revoke(caller.rule(rule_id)))
