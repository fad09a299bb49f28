"""Tools of an MCP server on a ToolHub (extra: `langgraph-durable[mcp]`).

    hub.mount(McpServer("billing", "http://127.0.0.1:8900/mcp"), effects={"refund": "idempotent"})

Each call tells the server in the request's `_meta`, under names that begin with
`langgraph-durable/`, the idempotency key, the fencing token, the approval, the run and the
tenant. A tool whose schema has an argument `idempotency_key` or `fencing_token` gets them
there too; models never see those arguments.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters
from mcp.server.mcpserver import MCPServer
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    REQUEST_TIMEOUT,
    CallToolResult,
    TextContent,
    Tool,
    ToolAnnotations,
)

from langgraph_durable.errors import ToolError, ToolUnreachable
from langgraph_durable.runs import Effect
from langgraph_durable.tools import (
    KEY_ARGUMENT,
    TOKEN_ARGUMENT,
    CallInfo,
    ToolSpec,
)

META_PREFIX = "langgraph-durable/"  # the protocol's rule for such names has no underscore
CALL_TIMEOUT_SECONDS = 60.0
CONNECT_TIMEOUT_SECONDS = 30.0

# The server looked at the request and turned it down before any tool ran. INVALID_REQUEST
# is not among them: the SDK uses it for answers that it could not read, too.
_REFUSED = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND})

#: A URL, a command to start, a server in this process, or a function that makes a transport.
Target = str | StdioServerParameters | MCPServer[Any] | Callable[[], Any]


class McpServer:
    """A ToolServer over MCP: one session for each event loop, opened at the first use.

    A session that broke is opened again by the next call. To send headers or other
    authentication, pass a function that makes a transport for each session:
    `lambda: streamable_http_client(url, http_client=...)`.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        *,
        timeout_seconds: float = CALL_TIMEOUT_SECONDS,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        self._name, self._target = name, target
        self._timeout_seconds = timeout_seconds
        self._connect_timeout_seconds = connect_timeout_seconds
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, _Session]
        self._sessions = WeakKeyDictionary()

    @property
    def name(self) -> str:
        """The server's name on the hub."""
        return self._name

    async def tools(self) -> Sequence[ToolSpec]:
        """Return the server's tools, with the effects that its annotations claim.

        Raises:
            ToolUnreachable: the server can't be reached, or gives no list.
        """
        found: list[ToolSpec] = []
        cursor: str | None = None
        async with self._session() as session:
            try:
                while True:
                    page = await session.client.list_tools(cursor=cursor, cache_mode="refresh")
                    found += [_spec(self._name, tool) for tool in page.tools]
                    if (cursor := page.next_cursor) is None:
                        return found
            except Exception as broken:
                session.leave()
                raise ToolUnreachable(f"MCP server {self._name!r}: {_said(broken)}") from broken

    async def call(self, tool: str, arguments: Mapping[str, Any], call: CallInfo) -> Any:
        """Call a tool. Its structured content is the result, or else its text.

        Raises:
            ToolError: the tool reported an error, or the server refused the request.
            ToolUnreachable: no connection, so the call was not made; or no answer, so it
                may have been (`outcome_unknown`).
        """
        where = f"{self._name}.{tool}"
        async with self._session() as session:
            try:
                result = await session.client.call_tool(tool, dict(arguments), meta=_meta(call))
            except Exception as error:
                code = error.code if isinstance(error, MCPError) else None
                if code in _REFUSED:
                    raise ToolError(f"tool {where!r}: {_said(error)}", tool=where) from error
                if code != REQUEST_TIMEOUT:  # a slow tool says nothing about the connection
                    session.leave()
                raise ToolUnreachable(
                    f"tool {where!r} gave no answer, so it may have run: {_said(error)}",
                    tool=where,
                    outcome_unknown=True,
                ) from error
        return _value(where, result)

    async def aclose(self) -> None:
        """Close this loop's session; a later call opens another."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[_Session]:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.is_left:
            session = self._sessions[loop] = _Session(self._client)
        with session.use():
            try:
                async with asyncio.timeout(self._connect_timeout_seconds):
                    await session.opened()
            except Exception as error:
                session.leave(at_once=True)
                raise ToolUnreachable(
                    f"MCP server {self._name!r} can't be reached: {_said(error)}"
                ) from error
            yield session

    def _client(self) -> Client:
        target: Any = self._target() if callable(self._target) else self._target
        return Client(target, read_timeout_seconds=self._timeout_seconds)


class _Session:
    """One connection, held open by a task of its own.

    The SDK's cancel scopes must be left in the task that entered them, and calls come from
    many tasks. A session that is left takes no new calls and closes when the last of those
    under way has ended.
    """

    client: Client

    def __init__(self, make: Callable[[], Client]) -> None:
        self.is_left = False
        self._make = make
        self._calls = 0
        self._over = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # an empty context: what the first caller's run holds must not live on in this task
        self._owner = asyncio.create_task(self._hold(), context=contextvars.Context())

    @contextmanager
    def use(self) -> Iterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self.is_left and not self._calls:
                self._over.set()

    async def opened(self) -> None:
        # shielded: a caller that is cancelled must not take the session from the others
        await asyncio.shield(self._ready)

    def leave(self, *, at_once: bool = False) -> None:
        self.is_left = True
        if at_once or not self._calls:
            self._over.set()
        if not self._ready.done():
            self._owner.cancel()

    async def close(self) -> None:
        self.leave(at_once=True)
        await asyncio.wait([self._owner])

    async def _hold(self) -> None:
        try:
            async with self._make() as client:
                self.client = client
                self._ready.set_result(None)
                await self._over.wait()
        except Exception as error:
            self._fail(error)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self.is_left = True

    def _fail(self, error: BaseException) -> None:
        if not self._ready.done():
            self._ready.set_exception(ConnectionError(_said(error)))
            self._ready.exception()  # read: it may be that nobody waits any more


def _spec(server: str, tool: Tool) -> ToolSpec:
    """Read a tool, with what its annotations claim. Their defaults are the careful ones."""
    hints = tool.annotations or ToolAnnotations()
    effect = Effect.IDEMPOTENT if hints.idempotent_hint else Effect.ONCE
    if hints.read_only_hint:
        effect = Effect.READ
    takes = tool.input_schema.get("properties", {})
    return ToolSpec(
        server,
        tool.name,
        effect,
        asks=effect.is_write and bool(hints.destructive_hint),
        description=tool.description or "",
        schema=tool.input_schema,
        key_argument=KEY_ARGUMENT if KEY_ARGUMENT in takes else None,
        token_argument=TOKEN_ARGUMENT if TOKEN_ARGUMENT in takes else None,
    )


def _meta(call: CallInfo) -> Any:
    told = {
        "idempotency_key": call.key_for_tool,
        "fencing_token": call.fencing_token,
        "run_id": call.run_id,
        "tenant": call.tenant,
        "approval_id": call.approval_id,
    }
    return {META_PREFIX + name: value for name, value in told.items() if value is not None}


def _value(where: str, result: CallToolResult) -> Any:
    texts = [part.text for part in result.content if isinstance(part, TextContent)]
    if result.is_error:
        raise ToolError("\n".join(texts) or f"tool {where!r} reported an error", tool=where)
    if result.structured_content is not None:
        return result.structured_content
    if len(texts) == len(result.content):
        return "\n".join(texts)
    return [
        part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in result.content
    ]


def _said(error: BaseException) -> str:
    """Say what went wrong: of a group (the SDK raises them), its first cause."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
