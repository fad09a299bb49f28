"""A tool call as a step: policy, a person's decision, the intent of a write, the call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langgraph_durable.context.calls import Call, begin, check_same, make_and_record, replay
from langgraph_durable.context.questioning import expired, put
from langgraph_durable.errors import ToolDenied
from langgraph_durable.policy import ToolCall, Verdict
from langgraph_durable.runs import (
    Decision,
    Effect,
    Question,
    QuestionState,
    Refused,
    Retry,
    Step,
    StepState,
)
from langgraph_durable.tools import Approval, CallInfo, ToolSpec, digest, is_name_of
from langgraph_durable.values import readable

if TYPE_CHECKING:
    from langgraph_durable.context import RunContext
    from langgraph_durable.context.places import Here


async def call_tool(
    ctx: RunContext,
    key: str,
    tool: str,
    arguments: Mapping[str, Any],
    retry: Retry | None,
    timeout_seconds: float | None,
) -> Any:
    """Answer a tool step from the journal, or see it through: see `RunContext.tool`."""
    ctx.state.gate()
    at = begin(ctx, key)
    known = ctx.journal.recorded(key)
    asked = digest(arguments)
    request = readable(arguments)
    if known is not None:
        # by the recorded name, so that a replay needs no tool server to be up
        name = known.name if is_name_of(tool, known.name) else tool
        same = Call(
            key=key, kind="tool", name=name, fingerprint=asked, request=request, make=_unused
        )
        check_same(ctx, same, known, at)
        if known.state is StepState.RECORDED:
            return replay(ctx, known)
    spec = await ctx.services.tools.check(tool, arguments)
    step = _ToolStep(ctx, spec, key, dict(arguments), asked, known, at, retry, timeout_seconds)
    return await ctx.state.fly(step.see_through())


def _unused() -> None:
    """Stand for a call that is only compared."""


class _ToolStep:
    """One tool call that isn't recorded yet."""

    def __init__(
        self,
        ctx: RunContext,
        spec: ToolSpec,
        key: str,
        arguments: dict[str, Any],
        asked: str,
        known: Step | None,
        at: Here,
        retry: Retry | None,
        timeout_seconds: float | None,
    ) -> None:
        self.ctx, self.spec, self.key, self.arguments = ctx, spec, key, arguments
        self.asked, self.known, self.at = asked, known, at
        self.retry, self.timeout_seconds = retry, timeout_seconds

    async def see_through(self) -> Any:
        """Judge, ask if policy asks, make sure about an earlier try, call, record."""
        verdict = self._refuse_denied()
        approval = None
        if verdict.kind == "ask":
            question = self._decided(verdict)
            refused = _refusal(question)
            if refused is not None:
                return await self._record(refused)
            if question.decision is not None and question.decision.arguments is not None:
                self.arguments = dict(question.decision.arguments)
                self._refuse_denied()  # an edit must not get past a limit
            approval = self._approval(question)
        if self._is_unsure():
            happened, value = await self._outcome(verdict)
            if happened:
                return await self._record(value)
        return await self._call(verdict, approval)

    def _refuse_denied(self) -> Verdict:
        verdict = self._judged()
        if verdict.kind == "deny":
            raise ToolDenied(self.key, self.spec.full_name, verdict.reason)
        return verdict

    def _judged(self) -> Verdict:
        ctx, spec = self.ctx, self.spec
        return ctx.services.policy.judge(
            ToolCall(
                tenant=ctx.tenant,
                agent=ctx.agent,
                server=spec.server,
                tool=spec.name,
                arguments=self.arguments,
                effect=spec.effect,
                asks=spec.asks,
            )
        )

    def _decided(self, verdict: Verdict) -> Question:
        """Return the answer to "may this call be made?", or end the pass with the question."""
        question = self.ctx.journal.answer(self.key, self.asked)
        if question is None:
            put(
                self.ctx,
                Question(
                    id="",
                    key=self.key,
                    kind="tool",
                    tool=self.spec.full_name,
                    payload=self.arguments,
                    digest=self.asked,
                    allowed=("approve", "reject", "edit"),
                    role=verdict.approver_role,
                    schema=self.spec.schema,
                    expires_in_seconds=verdict.expires_in_seconds,
                    on_expiry=verdict.on_expiry,
                ),
            )
        return question

    def _approval(self, question: Question) -> Approval:
        return Approval(
            id=question.approval_id or "",
            tenant=self.ctx.tenant,
            run_id=self.ctx.run_id,
            key=self.key,
            tool=self.spec.full_name,
            digest=digest(self.arguments),
        )

    def _is_unsure(self) -> bool:
        """Whether an earlier try of a call that can't be repeated may have happened."""
        begun = self.known is not None and self.known.state is StepState.INTENT
        return begun and self.spec.effect is Effect.ONCE

    async def _outcome(self, verdict: Verdict) -> tuple[bool, Any]:
        """Find out whether the earlier try happened: by the tool's probe, else by asking."""
        hub, name = self.ctx.services.tools, self.spec.full_name
        if self.spec.probe is not None:
            found = await hub.probe(name, self.arguments, self._info(verdict, None))
            return found is not None, found
        key = f"{self.key}?outcome"
        question = self.ctx.journal.answer(key, self.asked)
        if question is None:
            put(
                self.ctx,
                Question(
                    id="",
                    key=key,
                    kind="outcome",
                    tool=name,
                    payload={
                        "question": "Did this call happen? A worker died while it was being made. "
                        "approve: it happened; respond: it happened, with this result; "
                        "reject: it did not happen, make it now.",
                        "tool": name,
                        "arguments": self.arguments,
                    },
                    digest=self.asked,
                    allowed=("approve", "respond", "reject"),
                    role=verdict.approver_role,
                ),
            )
        decision = question.decision or Decision.approve("nobody")
        return decision.choice != "reject", decision.value

    async def _call(self, verdict: Verdict, approval: Approval | None) -> Any:
        async def make() -> Any:
            hub, name = self.ctx.services.tools, self.spec.full_name
            return await hub.call(name, self.arguments, self._info(verdict, approval))

        return await self._make(make, self.spec.effect, approval)

    async def _record(self, value: Any) -> Any:
        async def make() -> Any:
            return value

        return await self._make(make, Effect.READ, None)

    async def _make(self, make: Any, effect: Effect, approval: Approval | None) -> Any:
        call = Call(
            key=self.key,
            kind="tool",
            name=self.spec.full_name,
            fingerprint=self.asked,
            request=readable(self.arguments),
            make=make,
            effect=effect,
            approval_id=approval.id if approval else None,
            retry=self.retry or (Retry(attempts=1) if effect is Effect.ONCE else None),
            timeout_seconds=self.timeout_seconds,
        )
        return await make_and_record(self.ctx, call, self.known, self.at)

    def _info(self, verdict: Verdict, approval: Approval | None) -> CallInfo:
        ctx = self.ctx
        return CallInfo(
            run_id=ctx.run_id,
            tenant=ctx.tenant,
            agent=ctx.agent,
            key=self.key,
            idempotency_key=ctx.idempotency_key(self.key),
            fencing_token=ctx.epoch,
            attempt=1 + (self.known.attempts if self.known else 0),
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
