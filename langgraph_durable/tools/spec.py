"""What a tool is, what is known of a call to it, and what lets the call through."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from langgraph_durable.errors import BadInput, NotApproved, ToolDenied
from langgraph_durable.policy import Verdict
from langgraph_durable.runs import Compensation, Effect
from langgraph_durable.values import Types, fingerprint

KEY_ARGUMENT = "idempotency_key"
TOKEN_ARGUMENT = "fencing_token"  # noqa: S105  # the name of an argument

Probe = Callable[[Mapping[str, Any], "CallInfo"], Any]


@dataclass(frozen=True, slots=True)
class Found:
    """What a probe returns when the call did happen and its result may be None."""

    value: Any = None


def found(answer: Any) -> tuple[bool, Any]:
    """Read a probe's answer: whether the call happened, and its result."""
    return (True, answer.value) if isinstance(answer, Found) else (answer is not None, answer)


_SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # no dot: it ends the server's part of a name
_TOOL_NAME = re.compile(r"[^\s<>]([^\r\n<>]{0,126}[^\s<>])?")


@dataclass(frozen=True, slots=True)
class Approval:
    """A person's yes to one call: this tool, these arguments, this step of this run."""

    id: str
    tenant: str
    run_id: str
    key: str
    tool: str  # "server.tool"
    digest: str  # `digest(arguments)` of what is executed


@dataclass(frozen=True, slots=True)
class CallInfo:
    """What the runtime knows of a call, beside its arguments.

    `verdict` is what policy said. Without one, a tool that asks by default needs an approval.
    """

    run_id: str
    tenant: str
    agent: str
    key: str
    idempotency_key: str | None = None  # None: "<run_id>:<key>", see `key_for_tool`
    fencing_token: int = 0
    attempt: int = 1
    approval: Approval | None = None
    verdict: Verdict | None = None

    @property
    def key_for_tool(self) -> str:
        """The idempotency key that the tool gets: the same at every try of this step."""
        return self.idempotency_key or f"{self.run_id}:{self.key}"

    @property
    def approval_id(self) -> str | None:
        """The id of the approval that the call carries, if any."""
        return self.approval.id if self.approval else None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the hub knows it.

    `schema` is the JSON Schema of the arguments that models see; None until the tool's
    server was reached. `probe(arguments, info)` tells whether a call happened: it returns
    the result (as `Found(result)` if that may be None), or None for "it did not happen".
    """

    server: str
    name: str
    effect: Effect
    asks: bool = False
    description: str = ""
    schema: Mapping[str, Any] | None = None
    key_argument: str | None = None
    token_argument: str | None = None
    probe: Probe | None = None
    compensate: Compensation | None = None  # the call that undoes one of this tool

    def __post_init__(self) -> None:
        """Refuse names that can't be told apart, and an effect that is none."""
        if not _SERVER_NAME.fullmatch(self.server):
            raise BadInput(f"tool server {self.server!r}: a name is letters, digits, _ and -")
        if not _TOOL_NAME.fullmatch(self.name):
            raise BadInput(f"{self.name!r} is no name for a tool; give one by name=")
        object.__setattr__(self, "effect", as_effect(self.full_name, self.effect))

    @property
    def full_name(self) -> str:
        """The tool's name with its server's: unique in a hub."""
        return f"{self.server}.{self.name}"

    @property
    def model_name(self) -> str:
        """A name for models, which take no dots; unique in a hub but for odd names."""
        return re.sub(r"[^A-Za-z0-9_-]", "_", f"{self.server}__{self.name}")

    @property
    def hidden(self) -> tuple[str, ...]:
        """The arguments that only the runtime fills."""
        return tuple(n for n in (self.key_argument, self.token_argument) if n)

    def filled(self, arguments: Mapping[str, Any], info: CallInfo) -> dict[str, Any]:
        """Return the arguments with the idempotency key and the fencing token the tool takes."""
        given = dict(arguments)
        if self.key_argument:
            given[self.key_argument] = info.key_for_tool
        if self.token_argument:
            given[self.token_argument] = info.fencing_token
        return given


class ToolServer(Protocol):
    """Something outside that offers tools. `call` gets the key, token and approval in its info."""

    @property
    def name(self) -> str:
        """The server's name: the part before the dot in a tool's."""
        ...

    async def tools(self) -> Sequence[ToolSpec]:
        """Return what the server offers, with the effects that it claims for itself."""
        ...

    async def call(self, tool: str, arguments: Mapping[str, Any], call: CallInfo) -> Any:
        """Call a tool by its bare name. Raises ToolError for a failure the tool reports."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...


def digest(arguments: Mapping[str, Any]) -> str:
    """Return the digest of a call's arguments: what an approval is bound to and the audit shows."""
    return fingerprint(dict(arguments), types=Types())


def undoes(spec: ToolSpec) -> None:
    """Refuse a tool that a compensation couldn't call again after a crash.

    Raises:
        BadInput: it only reads, or can neither be repeated nor asked whether it happened.
    """
    is_safe = spec.effect is Effect.ONCE and spec.probe is not None
    if spec.effect is not Effect.IDEMPOTENT and not is_safe:
        raise BadInput(
            f"tool {spec.full_name!r} can't compensate: it is declared {spec.effect.value!r}. What "
            "undoes a step is made again after a crash, so it is 'idempotent', or 'once' with a probe."
        )


def is_name_of(name: str, full_name: str) -> bool:
    """Whether a tool of that full name goes by `name` too: bare, or as models see it.

    It needs no hub and no server: replay compares a recorded call by it.
    """
    server, _, bare = full_name.partition(".")
    return name in (full_name, bare, ToolSpec(server, bare, Effect.READ).model_name)


def as_effect(tool: str, effect: object) -> Effect:
    """Return the effect of a tool, or refuse a registration that declares none."""
    try:
        return Effect(effect)  # type: ignore[arg-type]  # None and the like are refused here
    except ValueError:
        given = "is registered without an effect" if effect is None else f"has no effect {effect!r}"
        raise BadInput(
            f"tool {tool!r} {given}. Declare what it does to the world: 'read' (may run again), "
            "'idempotent' (takes an idempotency key) or 'once' (cannot be repeated safely)."
        ) from None


def admit(spec: ToolSpec, arguments: Mapping[str, Any], info: CallInfo) -> None:
    """Let a call through only if policy allows it, or a person approved exactly this call."""
    verdict, approval = info.verdict, info.approval
    if verdict is not None and verdict.kind == "deny":
        raise ToolDenied(info.key, spec.full_name, verdict.reason)
    if approval is None:
        if spec.asks if verdict is None else verdict.kind == "ask":
            raise NotApproved(info.key, spec.full_name, "the call carries none")
        return
    bound = {
        "tenant": (approval.tenant, info.tenant),
        "run": (approval.run_id, info.run_id),
        "step": (approval.key, info.key),
        "tool": (approval.tool, spec.full_name),
        "arguments": (approval.digest, digest(arguments)),
    }
    other = [what for what, (approved, asked) in bound.items() if approved != asked]
    if other:
        why = f"{approval.id} was given for another {', '.join(other)}"
        raise NotApproved(info.key, spec.full_name, why)
