"""Routes of questions: the inbox, one question, its decision, handing it over."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from langgraph_durable.web.answers import Listed, QuestionOut
from langgraph_durable.web.auth import Known
from langgraph_durable.web.bodies import DecisionBody, DelegateBody, QuestionsQuery
from langgraph_durable.web.problems import ProblemRoute, responses

routes = APIRouter(prefix="/questions", tags=["questions"], route_class=ProblemRoute)


@routes.get("", responses=responses(404))
def list_questions(caller: Known, query: Annotated[QuestionsQuery, Query()]) -> Listed[QuestionOut]:
    """List the tenant's questions, oldest first; by default the open ones."""
    after = None if query.cursor is None else caller.question(query.cursor)
    if query.run_id is not None:
        caller.run(query.run_id)
    found = caller.durable.questions(
        tenant=caller.tenant,
        run_id=query.run_id,
        state=None if query.state == "all" else query.state,
        agents=caller.key.agents,
        after=after,
        limit=query.limit + 1,
    )
    shown = found[: query.limit]
    more = shown[-1].id if len(found) > len(shown) else None
    return Listed[QuestionOut](items=[QuestionOut.of(one) for one in shown], next=more)


@routes.get("/{question_id}", responses=responses(404))
def read_question(caller: Known, question_id: str) -> QuestionOut:
    """Read a question: exactly what will be done, and how it was decided."""
    return QuestionOut.of(caller.question(question_id))


@routes.post("/{question_id}/decision", responses=responses(403, 404, 409, 413))
def decide(caller: Known, question_id: str, body: DecisionBody) -> QuestionOut:
    """Give a question its one answer.

    The first decision wins. The same one again answers 200 and changes nothing; another
    one, or one that comes too late, answers 409.
    """
    question = caller.question(question_id)
    decided = caller.durable.decide(
        question.id, body.decision(caller.name), tenant=caller.tenant, roles=caller.key.roles
    )
    return QuestionOut.of(decided)


@routes.post("/{question_id}/delegate", responses=responses(403, 404, 409, 413))
def delegate(caller: Known, question_id: str, body: DelegateBody) -> QuestionOut:
    """Hand an open question to another role, or to one person."""
    question = caller.question(question_id)
    handed = caller.durable.delegate(
        question.id,
        by=caller.name,
        role=body.role,
        person=body.person,
        tenant=caller.tenant,
        roles=caller.key.roles,
    )
    return QuestionOut.of(handed)
