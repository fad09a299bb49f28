"""The hub: registering tools, finding them, calling them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from langchain_core.tools import BaseTool

from langgraph_durable import calls
from langgraph_durable.errors import BadInput, ToolError, ToolUnreachable, UnknownTool
from langgraph_durable.runs import Compensation, Effect
from langgraph_durable.tools import arguments as args
from langgraph_durable.tools import run
from langgraph_durable.tools.spec import (
    KEY_ARGUMENT,
    TOKEN_ARGUMENT,
    CallInfo,
    Probe,
    ToolServer,
    ToolSpec,
    admit,
    as_effect,
    undoes,
)

F = TypeVar("F", bound=Callable[..., Any])

_MODEL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what model providers take for a function


@dataclass(frozen=True, slots=True)
class _Tool:
    spec: ToolSpec
    run: run.Run
    check: args.Check | None  # None until the tool's server was reached


@dataclass(slots=True)
class _Mount:
    server: ToolServer
    asks: frozenset[str]
    trusted: bool
    is_loaded: bool = False
    undeclared: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()


class ToolHub:
    """Tools with their effects. Every tool call of every agent goes through `call`."""

    def __init__(self) -> None:
        self._tools: dict[str, _Tool] = {}
        self._mounts: dict[str, _Mount] = {}
        self._registered: dict[str, Callable[..., Any] | BaseTool] = {}

    def add(
        self,
        tool: Callable[..., Any] | BaseTool,
        *,
        effect: Effect | str | None = None,
        server: str = "local",
        name: str | None = None,
        asks: bool = False,
        key_argument: str | None = None,
        token_argument: str | None = None,
        probe: Probe | None = None,
        compensate: Compensation | None = None,
    ) -> ToolSpec:
        """Register a function (awaited if async, else run in a thread) or a LangChain tool.

        Parameters called `idempotency_key` and `fencing_token` are filled by the runtime;
        `key_argument` and `token_argument` name them otherwise. With `asks`, a call waits
        for a person unless a rule allows it. `probe(arguments, info)` looks whether a call of
        a `once` tool happened, for servers without keys: see `ToolSpec`. `compensate` is the
        call that undoes one of this tool; register what undoes before what is undone.

        Raises:
            BadInput: no effect is declared, an idempotent tool takes no key, the signature
                can't be read, or what compensates can't be repeated safely.
            UnknownTool: what compensates is not registered.
        """
        called = name or _name_of(tool)
        if probe is not None and as_effect(called, effect) is not Effect.ONCE:
            raise BadInput(
                f"tool {called!r}: a probe is for effect='once'; others are called again"
            )
        spec = ToolSpec(
            server,
            called,
            as_effect(called, effect),
            asks=asks,
            key_argument=_parameter(called, tool, key_argument, KEY_ARGUMENT),
            token_argument=_parameter(called, tool, token_argument, TOKEN_ARGUMENT),
            probe=probe,
            compensate=compensate,
        )
        if isinstance(tool, BaseTool):
            spec = replace(spec, description=tool.description)
            takes = args.of_langchain(spec.full_name, tool, spec.hidden)
            how = run.langchain(tool)
        else:
            spec = replace(spec, description=inspect.getdoc(tool) or "")
            takes = args.of_function(spec.full_name, tool, spec.hidden)
            how = run.function(tool)
        spec = self._put(spec, how, takes)
        self._registered[spec.full_name] = tool
        return spec

    def tool(self, *, effect: Effect | str, **options: Any) -> Callable[[F], F]:
        """Register the decorated function, which stays as it is; options as for `add`."""

        def register(fn: F) -> F:
            self.add(fn, effect=effect, **options)
            return fn

        return register

    def plug(self, call: run.OwnCall, specs: Iterable[ToolSpec]) -> None:
        """Reach these tools by a function of your own: `(server, tool, arguments, approval_id)`.

        The key and the token are added to the arguments under the names that a spec declares.

        Raises:
            BadInput: an idempotent tool declares no `key_argument`.
        """
        for spec in specs:
            takes = args.of_schema(spec.full_name, spec.schema or args.ANYTHING, spec.hidden)
            self._put(spec, run.own(call), takes)

    def mount(
        self,
        server: ToolServer,
        *,
        effects: Mapping[str, Effect | str | ToolSpec] | None = None,
        asks: Collection[str] = (),
        trusted: bool = False,
    ) -> None:
        """Add a server's tools. It is reached at their first use, or by `ready`.

        `effects` declares tools by bare name and is known at once; a ToolSpec there can
        also name a probe or the key's argument. What a server claims about its other tools
        counts only if it is `trusted`; otherwise calling them is refused.
        """
        taken = {tool.spec.server for tool in self._tools.values()} | set(self._mounts)
        if server.name in taken:
            raise BadInput(f"the hub already has a tool server {server.name!r}")
        declared = dict(effects or {})
        if not trusted and (unknown := sorted(set(asks) - set(declared))):
            raise BadInput(f"tools that ask must be declared in effects=: {', '.join(unknown)}")
        self._mounts[server.name] = _Mount(server, frozenset(asks), trusted)
        for name, what in declared.items():
            if isinstance(what, ToolSpec):
                spec = replace(what, server=server.name, name=name)
            else:
                spec = ToolSpec(server.name, name, as_effect(name, what))
            spec = replace(spec, asks=spec.asks or name in asks)
            self._put(spec, run.server(server), None)

    def _put(self, spec: ToolSpec, how: run.Run, takes: args.Signature | None) -> ToolSpec:
        if spec.full_name in self._tools or (takes and spec.server in self._mounts):
            raise BadInput(f"the hub already has a tool {spec.full_name!r}; give another name=")
        if spec.compensate is not None:
            undoes(self.spec(spec.compensate.tool))
            if not spec.effect.is_write:
                raise BadInput(f"tool {spec.full_name!r} only reads: there is nothing to undo")
        if takes is not None:
            spec = replace(spec, schema=takes.schema)
            if spec.effect is Effect.IDEMPOTENT and spec.key_argument is None:
                raise BadInput(
                    f"tool {spec.full_name!r} is declared idempotent, but no idempotency key "
                    f"reaches it. Give it a parameter {KEY_ARGUMENT!r} (or name one by "
                    "key_argument=), or declare it 'once'."
                )
        self._tools[spec.full_name] = _Tool(spec, how, takes.check if takes else None)
        return spec

    async def ready(self) -> None:
        """Reach every mounted server and learn its tools.

        Raises:
            ToolUnreachable: a server can't be reached; the others were learned.
        """
        failures = [failure for name in self._mounts if (failure := await self._try_load(name))]
        if failures:
            raise failures[0]

    async def _try_load(self, server: str) -> ToolUnreachable | None:
        try:
            await self._load(self._mounts[server])
        except ToolUnreachable as failure:
            return failure
        return None

    async def _load(self, mount: _Mount) -> None:
        if mount.is_loaded:
            return
        offered = {spec.name: spec for spec in await mount.server.tools()}
        name = mount.server.name
        declared = {t.spec.name: t.spec for t in self._tools.values() if t.spec.server == name}
        if mount.trusted:
            for bare, spec in offered.items():
                asks = spec.asks or bare in mount.asks
                declared.setdefault(bare, replace(spec, server=name, asks=asks))
        for bare in declared.keys() & offered.keys():
            spec = _joined(declared[bare], offered[bare])
            takes = args.of_schema(
                spec.full_name, offered[bare].schema or args.ANYTHING, spec.hidden
            )
            spec = replace(spec, schema=takes.schema)
            self._tools[spec.full_name] = _Tool(spec, run.server(mount.server), takes.check)
        mount.undeclared = frozenset(offered.keys() - declared.keys())
        mount.absent = frozenset(declared.keys() - offered.keys())
        mount.is_loaded = True

    # --- looking up ----------------------------------------------------------------------

    def spec(self, name: str) -> ToolSpec:
        """Return what is known of a tool: by "server.tool", or by its bare name if that is unique.

        Raises:
            UnknownTool: none is known (a mounted server's undeclared tools are known after
                `ready` or `find`).
            BadInput: the name fits several tools, or its effect is undeclared.
        """
        if name in self._tools:
            return self._tools[name].spec
        found = [s for s in self.specs() if name in (s.name, s.model_name)]
        if len(found) > 1:
            names = ", ".join(sorted(s.full_name for s in found))
            raise BadInput(f"tool {name!r} could be any of {names}; give the server's name too")
        if not found:
            self._refuse_undeclared(name)
            raise UnknownTool(name, sorted(self._tools))
        return found[0]

    def _refuse_undeclared(self, name: str) -> None:
        for server, mount in self._mounts.items():
            for bare in mount.undeclared:
                if name in (bare, f"{server}.{bare}"):
                    raise BadInput(
                        f"tool '{server}.{bare}' has no declared effect, and its server isn't "
                        f"trusted to say. Declare it: hub.mount(..., effects={{{bare!r}: ...}}) as "
                        "'read', 'idempotent' or 'once'."
                    )

    async def find(self, name: str) -> ToolSpec:
        """Return a tool with its schema, and reach its server for that if need be.

        Raises:
            UnknownTool: no such tool, or its server no longer offers it.
            ToolUnreachable: its server can't be reached.
            BadInput: the name fits several tools, or its effect is undeclared.
        """
        try:
            spec = self.spec(name)
        except UnknownTool:
            server = name.partition(".")[0]
            if server in self._mounts:
                await self._load(self._mounts[server])
            else:
                await self.ready()
            spec = self.spec(name)
        if (mount := self._mounts.get(spec.server)) is not None:
            await self._load(mount)
            if spec.name in mount.absent:
                offered = [
                    s.full_name for s in self.specs() if s.server == spec.server and s.schema
                ]
                raise UnknownTool(spec.full_name, sorted(offered))
        return self._tools[spec.full_name].spec

    def full_name(self, name: str) -> str:
        """Return "server.tool" for a name without reaching any server: for replay.

        Raises:
            UnknownTool: no such tool, and no mounted server that could have it.
            BadInput: the name fits several tools.
        """
        server, dot, bare = name.partition(".")
        return name if dot and bare and server in self._mounts else self.spec(name).full_name

    def specs(self) -> list[ToolSpec]:
        """Return the tools that are known now, in the order they were registered."""
        return [tool.spec for tool in self._tools.values()]

    def registered(self, full_name: str) -> Callable[..., Any] | BaseTool | None:
        """Return the function or tool that was added under a name; None for a server's."""
        return self._registered.get(full_name)

    def as_langchain(self, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Return tools as functions for `bind_tools`: all, or those named.

        A tool goes by its bare name if that is unique, else by "server__tool"; `spec`,
        `find` and `call` take either. Arguments that the runtime fills aren't shown.
        """
        specs = self.specs()
        bare = [spec.name for spec in specs]
        chosen = specs if names is None else [self.spec(name) for name in names]
        return [
            {
                "type": "function",
                "function": {
                    "name": s.name
                    if bare.count(s.name) == 1 and _MODEL_NAME.fullmatch(s.name)
                    else s.model_name,
                    "description": s.description,
                    "parameters": dict(s.schema or args.ANYTHING),
                },
            }
            for s in chosen
        ]

    # --- calling -------------------------------------------------------------------------

    async def check(self, name: str, arguments: Mapping[str, Any]) -> ToolSpec:
        """Check a call's arguments without making it, before a person is asked for instance.

        Raises:
            BadInput: they don't fit; the message names the tool and the field.
        """
        spec = await self.find(name)
        self._checked(spec, arguments)
        return spec

    def _checked(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
        check = self._tools[spec.full_name].check
        assert check is not None  # noqa: S101  # `find` reached the server
        return check(arguments)

    async def call(self, name: str, arguments: Mapping[str, Any], info: CallInfo) -> Any:
        """Make a call: the one way from an agent to a tool.

        Arguments and approval are checked first; the idempotency key and the fencing token
        are added after, so neither a model nor an approver ever chooses them.

        Raises:
            BadInput: no such tool, or its arguments don't fit.
            ToolDenied: policy forbids the call.
            NotApproved: it needs an approval of exactly this call, and has none.
            ToolError: the tool reported a failure.
        """
        spec = await self.find(name)
        given = self._checked(spec, arguments)
        admit(spec, arguments, info)
        try:
            return await self._tools[spec.full_name].run(spec, given, info)
        except (ToolError, ToolUnreachable) as failure:
            failure.tool, failure.key = failure.tool or spec.full_name, failure.key or info.key
            if spec.effect is Effect.ONCE and spec.server in self._mounts:
                # a protocol that can't tell a refusal from a crash half-way: a call that
                # can't be repeated must not be taken for undone
                failure.outcome_unknown = True
            raise

    async def probe(self, name: str, arguments: Mapping[str, Any], info: CallInfo) -> Any:
        """Ask a tool's probe whether a call happened: its answer, or None if it did not.

        Raises:
            BadInput: the tool has no probe.
        """
        spec = self.spec(name)
        if spec.probe is None:
            raise BadInput(f"tool {spec.full_name!r} has no probe")
        return await calls.call(spec.probe, dict(arguments), info)

    async def aclose(self) -> None:
        """Let go of the connections to mounted servers."""
        for mount in self._mounts.values():
            await mount.server.aclose()


def _joined(declared: ToolSpec, offered: ToolSpec) -> ToolSpec:
    """What was declared at mount, and for the rest what the server says."""
    return replace(
        declared,
        description=declared.description or offered.description,
        key_argument=declared.key_argument or offered.key_argument,
        token_argument=declared.token_argument or offered.token_argument,
    )


def _name_of(tool: Any) -> str:
    made = tool.name if isinstance(tool, BaseTool) else getattr(tool, "__name__", "")
    return str(made or type(tool).__name__)


def _parameter(tool: str, what: Any, named: str | None, default: str) -> str | None:
    """Return the parameter that takes the key (or the token), if there is one."""
    try:
        names, takes_any = args.parameters(what)
    except (TypeError, ValueError) as unreadable:
        raise BadInput(f"tool {tool!r}: its signature can't be read: {unreadable}") from unreadable
    if named is None:
        return default if default in names else None
    if named not in names and not takes_any:
        raise BadInput(f"tool {tool!r} has no parameter {named!r}; it has {sorted(names)}")
    return named
