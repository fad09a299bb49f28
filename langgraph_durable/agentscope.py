"""AgentScope's confirmation event, read as our decisions. Pure.

    {"type": "USER_CONFIRM_RESULT", "reply_id": "<run id>", "confirm_results": [
        {"confirmed": true, "tool_call_id": "refund"},
        {"confirmed": true, "tool_call": {"id": "refund", "name": ..., "input": "{...}"},
         "rules": [{"tool_name": "create_refund", "behavior": "allow"}]}]}

`reply_id` is the message's id: our run. A tool call's id is a step's key or a question's id.
Input that differs from what was asked is an edit. A rule is ours as data, or AgentScope's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_durable.errors import BadInput, NotFound
from langgraph_durable.runs import Decision, Question, QuestionState
from langgraph_durable.tools import digest

TYPE = "USER_CONFIRM_RESULT"


def reply_id(event: object) -> str:
    """Return the run that an event is for.

    Raises:
        BadInput: it is no confirmation.
    """
    if not isinstance(event, Mapping) or event.get("type") != TYPE:
        raise BadInput(f"a confirmation is an object with the type {TYPE!r}")
    run_id = event.get("reply_id")
    if not isinstance(run_id, str) or not isinstance(event.get("confirm_results"), list):
        raise BadInput("a confirmation has a reply_id and a list of confirm_results")
    return run_id


def decisions(event: Mapping[str, Any], asked: Sequence[Question], by: str) -> dict[str, Decision]:
    """Return the decision for each question that an event answers, by question id.

    Raises:
        BadInput: the event is malformed, or answers a call twice.
        NotFound: it names a call that the run did not ask about.
    """
    found: dict[str, Decision] = {}
    for result in event["confirm_results"]:
        call_id, given = _call(result)
        question = _named(asked, call_id)
        if question.id in found:
            raise BadInput(f"tool call {call_id!r} is answered twice")
        found[question.id] = _meant(question, result, given, by)
    return found


def _call(result: object) -> tuple[str, Any]:
    if not isinstance(result, Mapping) or not isinstance(result.get("confirmed"), bool):
        raise BadInput("each of confirm_results has `confirmed`: true or false")
    call = result.get("tool_call")
    call_id = call.get("id") if isinstance(call, Mapping) else result.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        raise BadInput("each of confirm_results has a tool_call_id, or a tool_call with an id")
    return call_id, call.get("input") if isinstance(call, Mapping) else None


def _named(asked: Sequence[Question], call_id: str) -> Question:
    """Return the question of an id or step key; of several with one key the newest."""
    found = [question for question in asked if call_id in (question.id, question.key)]
    if not found:
        raise NotFound("tool call", call_id)
    open_ = [question for question in found if question.state is QuestionState.OPEN]
    return (open_ or found)[-1]


def _meant(question: Question, result: Mapping[str, Any], given: Any, by: str) -> Decision:
    rules = [_rule(rule, question) for rule in result.get("rules") or ()]
    if not result["confirmed"]:
        return Decision.reject(by, rules=rules)
    arguments = _arguments(given)
    if arguments is None or arguments == question.payload or _same(question, arguments):
        return Decision.approve(by, rules=rules)
    if not isinstance(arguments, dict):
        raise BadInput(f"the input of tool call {question.key!r} is not an object")
    return Decision.edit(by, arguments, rules=rules)


def _same(question: Question, arguments: Any) -> bool:
    """By digest: a payload may hold what JSON says otherwise, such as a tuple."""
    return isinstance(arguments, dict) and digest(arguments) == question.digest


def _arguments(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    if not given.strip():
        return None
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"a tool call's input is not JSON: {error}") from error


def _rule(rule: object, question: Question) -> Mapping[str, Any]:
    if not isinstance(rule, Mapping):
        raise BadInput("a rule is an object")
    if "behavior" not in rule:
        return rule  # ours, as data
    if rule.get("rule_content"):
        raise BadInput(
            "a rule with rule_content can't be read; say it as {'verdict': 'allow', 'when': [...]}"
        )
    name = str(rule.get("tool_name") or question.tool)
    return {"verdict": str(rule["behavior"]), "tool": name}
