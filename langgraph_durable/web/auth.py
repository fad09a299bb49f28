"""Who calls: an API key, and through it a tenant, roles and agents. Nothing else says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from langgraph_durable.app import Durable
from langgraph_durable.errors import BadKey, Forbidden, NotFound
from langgraph_durable.keys import OPERATOR, SUPERVISOR, ApiKey, may_decide
from langgraph_durable.runs import Event, Question, Run, StandingRule, Step

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="ApiKey",
    bearerFormat="lgd_<id>_<secret>",
    description="A key made by `langgraph-durable keys create`. It names the tenant.",
)


@dataclass(frozen=True, slots=True)
class Caller:
    """A live key, and what it may see: its tenant's runs, of the agents in its scope."""

    durable: Durable
    key: ApiKey

    @property
    def tenant(self) -> str:
        """The only tenant that this caller knows."""
        return self.key.tenant

    @property
    def name(self) -> str:
        """How the audit calls the caller."""
        return self.key.name

    def run(self, run_id: str) -> Run:
        """Return a run that the caller may see.

        Raises:
            NotFound: there is none; a foreign one looks the same.
        """
        run = self.durable.get(run_id, self.tenant)
        if not self.sees(run.agent):
            raise NotFound("run", run_id)
        return run

    def question(self, question_id: str) -> Question:
        """Return a question that the caller may see.

        Raises:
            NotFound: there is none; a foreign one looks the same.
        """
        question = self.durable.question(question_id, self.tenant)
        if self.key.agents is not None:
            run = self.durable.get(question.run_id, self.tenant)
            if not self.sees(run.agent):
                raise NotFound("question", question_id)
        return question

    def rules(self) -> Sequence[StandingRule]:
        """Return the rules that the caller may see."""
        return self.durable.rules(self.tenant, agents=self.key.agents)

    def rule(self, rule_id: str) -> StandingRule:
        """Return a rule that the caller may see.

        Raises:
            NotFound: there is none; a foreign one looks the same.
        """
        for rule in self.rules():
            if rule.id == rule_id:
                return rule
        raise NotFound("rule", rule_id)

    def may_revoke(self, rule: StandingRule) -> bool:
        """Tell whether the caller may end a rule: who could have made it, or an operator."""
        return may_decide(self.key.roles, rule.role) or OPERATOR in self.key.roles

    def revoke(self, rule: StandingRule) -> StandingRule:
        """End a rule that `rule` returned.

        Raises:
            Forbidden: the caller may not.
        """
        if not self.may_revoke(rule):
            raise Forbidden("revoking this rule", rule.role or SUPERVISOR)
        return self.durable.revoke_rule(rule.id, by=self.name, tenant=self.tenant)

    # what belongs to a run that was seen just now needs no second look at whose it is

    def steps(self, run: Run) -> Sequence[Step]:
        """Return the journal of a run that `run` returned."""
        return self.durable.store.list_steps(run.id)

    def events(self, run: Run, after: int = 0) -> Sequence[Event]:
        """Return the events behind the id `after` of a run that `run` returned."""
        return self.durable.store.list_events(run.id, after)

    def sees(self, agent: str) -> bool:
        """Tell whether an agent is in the key's scope."""
        return self.key.agents is None or agent in self.key.agents

    def need(self, role: str, what: str) -> None:
        """Refuse a caller without a role.

        Raises:
            Forbidden: the key doesn't have it.
        """
        if role not in self.key.roles:
            raise Forbidden(what, role)


def caller(
    request: Request,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    """Return who calls.

    Raises:
        BadKey: no key came, or not a live one.
    """
    if given is None:
        raise BadKey
    durable: Durable = request.state.langgraph_durable
    return Caller(durable, durable.keys.verify(given.credentials))


Known = Annotated[Caller, Depends(caller)]
