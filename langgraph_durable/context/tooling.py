"""A tool call as a step: policy, a person's decision, the intent of a write, the call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from langgraph_durable.context.allowances import check_allowances
from langgraph_durable.context.calls import (
    Call,
    begin_alone,
    check_same,
    is_unsure,
    make_and_record,
    replay,
)
from langgraph_durable.context.compensating import Undo, undo_of
from langgraph_durable.context.emitting import Tells, told_by
from langgraph_durable.context.questioning import did_it_happen, expired, put
from langgraph_durable.errors import BadInput, ToolDenied
from langgraph_durable.policy import ToolCall, Verdict
from langgraph_durable.runs import (
    Compensation,
    Effect,
    Question,
    QuestionState,
    Refused,
    Retry,
    Step,
    StepState,
)
from langgraph_durable.tools import Approval, CallInfo, ToolSpec, digest, found, is_name_of

if TYPE_CHECKING:
    from langgraph_durable.context import RunContext
    from langgraph_durable.context.places import Here


class ToolSource(Protocol):
    """Where tools live: a ToolHub, or what an integration makes of tools that live elsewhere."""

    async def check(self, name: str, arguments: Mapping[str, Any]) -> ToolSpec:
        """Return what is known of a tool; raises BadInput if the arguments don't fit."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], info: CallInfo) -> Any:
        """Make a call that was let through."""
        ...

    async def probe(self, name: str, arguments: Mapping[str, Any], info: CallInfo) -> Any:
        """Look whether an earlier try happened: its result (or `Found`), or None."""
        ...


async def call_tool(
    ctx: RunContext,
    key: str,
    tool: str,
    arguments: Mapping[str, Any],
    retry: Retry | None = None,
    timeout_seconds: float | None = None,
    source: ToolSource | None = None,
    tells: Tells | None = None,
    compensate: Compensation | None = None,
) -> Any:
    """Answer a tool step from the journal, or see it through: see `RunContext.tool`."""
    at = await begin_alone(ctx, key)
    known = ctx.journal.recorded(key)
    asked = digest(arguments)
    request = ctx.services.redaction.readable(arguments, _schema_of(ctx, tool))
    if known is not None:
        # by the recorded name, so that a replay needs no tool server to be up
        name = known.name if is_name_of(tool, known.name) else tool
        same = Call(
            key=key, kind="tool", name=name, fingerprint=asked, request=request, make=_unused
        )
        check_same(ctx, same, known, at)
        if known.state is StepState.RECORDED:
            return replay(ctx, known)
    source = source or ctx.services.tools
    try:
        spec = await source.check(tool, arguments)
        undo = await undo_of(ctx, key, compensate or spec.compensate, spec.effect, arguments)
    except Exception:
        ctx.state.release(key)  # the same call may be made with arguments that fit
        raise
    step = _ToolStep(
        ctx, source, spec, key, dict(arguments), asked, known, at, retry, timeout_seconds, tells, undo
    )  # fmt: skip
    return await ctx.state.fly(step.see_through(), key)


def _schema_of(ctx: RunContext, tool: str) -> Mapping[str, Any] | None:
    """Return the schema of a tool, without reaching its server."""
    try:
        return ctx.services.tools.spec(tool).schema
    except BadInput:  # also a tool that is not known yet
        return None


def _unused() -> None:
    """Stand for a call that is only compared."""


class _ToolStep:
    """One tool call that isn't recorded yet."""

    def __init__(
        self,
        ctx: RunContext,
        source: ToolSource,
        spec: ToolSpec,
        key: str,
        arguments: dict[str, Any],
        asked: str,
        known: Step | None,
        at: Here,
        retry: Retry | None,
        timeout_seconds: float | None,
        tells: Tells | None,
        undo: Undo | None,
    ) -> None:
        self.ctx, self.source, self.spec, self.key = ctx, source, spec, key
        self.tells, self.undo = tells, undo
        self.arguments = arguments
        self.asked, self.known, self.at = asked, known, at
        self.retry, self.timeout_seconds = retry, timeout_seconds

    async def see_through(self) -> Any:
        """Judge, ask if policy asks, make sure about an earlier try, call, record."""
        verdict = await self._refuse_denied()
        approval = None
        # a decision that was made counts, also if the rule that asked is gone meanwhile
        question = self.ctx.journal.answer(self.key, self.asked)
        if question is None and self._has_to_ask(verdict):
            self._ask(verdict)
        while question is not None:
            refused = _refusal(question)
            if refused is not None:
                return await self._record(refused)
            before, verdict, edited = verdict, *await self._edited(question, verdict)
            approval = self._approval(question)
            question = self._asked_about_edit(question, before, verdict) if edited else None
        if approval is None and verdict.kind == "ask":
            verdict = replace(verdict, kind="allow", reason="let through before a crash")
        if is_unsure(self.known, self.spec.effect):
            happened, value = await self._outcome(self.known, verdict)
            if happened:
                return await self._record(value)
        check_allowances(self.ctx, "tool")
        return await self._call(verdict, approval)

    async def _edited(self, question: Question, verdict: Verdict) -> tuple[Verdict, bool]:
        """Take over the arguments of an edit, which must not get past a limit."""
        if question.decision is None or question.decision.arguments is None:
            return verdict, False
        self.arguments = dict(question.decision.arguments)
        return await self._refuse_denied(), True

    def _asked_about_edit(
        self, question: Question, before: Verdict, verdict: Verdict
    ) -> Question | None:
        """Ask about edited arguments that are for somebody else, or for more people, to allow.

        Returns the answered question about them, or None if the one who edited may allow them.
        """
        roles = (before.approver_role, question.role)
        more = verdict.approver_role not in roles or verdict.approvals > question.approvals
        if verdict.kind != "ask" or verdict.rule is before.rule or not more:
            return None
        answer = self.ctx.journal.answer(self.key, digest(self.arguments))
        if answer is None:
            self._ask(verdict)
        return answer

    def _has_to_ask(self, verdict: Verdict) -> bool:
        """Whether to ask, by what was journaled before by what policy says now.

        What a person was asked is not un-asked by a rule that was made meanwhile, or by a
        predicate that answers otherwise: they see the question and decide it. And a write
        that was let through is finished under its key, though a rule would ask by now: it may
        have happened already.
        """
        known = self.known
        if known is None or known.fingerprint != self.asked:
            return verdict.kind == "ask"
        if known.state is StepState.INTENT:
            return False
        return verdict.kind == "ask" or any(
            question.key == self.key and question.state is QuestionState.OPEN
            for question in self.ctx.journal.questions()
        )

    async def _refuse_denied(self) -> Verdict:
        verdict = await self._judged()
        if verdict.kind == "deny":
            raise ToolDenied(self.key, self.spec.full_name, verdict.reason)
        return verdict

    async def _judged(self) -> Verdict:
        ctx, spec, services = self.ctx, self.spec, self.ctx.services
        call = ToolCall(
            tenant=ctx.tenant,
            agent=ctx.agent,
            server=spec.server,
            tool=spec.name,
            arguments=self.arguments,
            effect=spec.effect,
            asks=spec.asks,
        )
        verdict = services.policy.judge_with(call, services.standing)
        if verdict.kind != "allow" or verdict.standing is None:
            return verdict
        # only here the database is asked: a rule of a decision would let the call through
        refused = await asyncio.to_thread(
            services.was_refused, spec.full_name, digest(self.arguments)
        )
        return services.policy.judge_with(call, services.standing, refused_before=refused)

    def _ask(self, verdict: Verdict) -> NoReturn:
        """End the pass with the question "may this call be made?"."""
        rule = verdict.rule
        put(
            self.ctx,
            Question(
                id="",
                key=self.key,
                kind="tool",
                tool=self.spec.full_name,
                payload=self.arguments,
                digest=digest(self.arguments),
                allowed=("approve", "reject", "edit"),
                role=verdict.approver_role,
                schema=self.spec.schema,
                expires_in_seconds=verdict.expires_in_seconds,
                on_expiry=verdict.on_expiry,
                approvals=verdict.approvals,
                remind_after_seconds=rule.remind_after_seconds if rule else None,
                escalate_after_seconds=rule.escalate_after_seconds if rule else None,
                escalate_to=rule.escalate_to if rule else None,
            ),
        )

    def _approval(self, question: Question) -> Approval:
        return Approval(
            id=question.approval_id or "",
            tenant=self.ctx.tenant,
            run_id=self.ctx.run_id,
            key=self.key,
            tool=self.spec.full_name,
            digest=digest(self.arguments),
        )

    async def _outcome(self, known: Step, verdict: Verdict) -> tuple[bool, Any]:
        """Find out whether the earlier try happened: by the tool's probe, else by asking."""
        name = self.spec.full_name
        if self.spec.probe is not None:
            answer = await self.source.probe(name, self.arguments, self._info(verdict, None))
            return found(answer)
        arguments = self.ctx.services.redaction.shown(self.arguments, self.spec.schema)
        shown = {"tool": name, "arguments": arguments}
        if arguments is not self.arguments:  # the answer is bound to the true ones all the same
            shown["digest"] = digest(self.arguments)
        return did_it_happen(self.ctx, known, shown, tool=name, role=verdict.approver_role)

    async def _call(self, verdict: Verdict, approval: Approval | None) -> Any:
        async def make() -> Any:
            info = self._info(verdict, approval)
            return await self.source.call(self.spec.full_name, self.arguments, info)

        # the audit: whose yes, or which rule of a decision, let the call through
        approved = approval.id if approval else verdict.standing and f"rule:{verdict.standing}"
        return await self._make(make, self.spec.effect, approved)

    async def _record(self, value: Any) -> Any:
        async def make() -> Any:
            return value

        return await self._make(make, Effect.READ, None)

    async def _make(self, make: Any, effect: Effect, approval_id: str | None) -> Any:
        call = Call(
            key=self.key,
            kind="tool",
            name=self.spec.full_name,
            fingerprint=self.asked,
            request=self.ctx.services.redaction.readable(self.arguments, self.spec.schema),
            make=make,
            effect=effect,
            approval_id=approval_id,
            retry=self.retry or (Retry(attempts=1) if effect is Effect.ONCE else None),
            timeout_seconds=self.timeout_seconds,
            emits=told_by(self.ctx, self.key, self.tells),
            undo=self.undo and replace(self.undo, asked=self.arguments),
        )
        return await make_and_record(self.ctx, call, self.known, self.at)

    def _info(self, verdict: Verdict, approval: Approval | None) -> CallInfo:
        ctx = self.ctx
        latest = ctx.journal.recorded(self.key)  # a write's intent counts this very try
        begun = latest is not None and latest.state is StepState.INTENT
        return CallInfo(
            run_id=ctx.run_id,
            tenant=ctx.tenant,
            agent=ctx.agent,
            key=self.key,
            idempotency_key=ctx.idempotency_key(self.key),
            fencing_token=ctx.epoch,
            attempt=(latest.attempts if latest else 0) + (not begun),
            approval=approval,
            verdict=verdict,
        )


def _refusal(question: Question) -> Refused | None:
    """Return the refused result, if a person refused or nobody answered in time."""
    if question.state is QuestionState.EXPIRED:
        refused: Refused = expired(question)
        return refused
    decision = question.decision
    if decision is not None and decision.choice == "reject":
        return Refused(decision.reason, decision.by)
    return None
