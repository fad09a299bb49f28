"""A small billing server over MCP: `python mcp_billing.py stdio` or `... http PORT`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ImageContent, TextContent, ToolAnnotations


def make_server(log: list[Any] | None = None) -> MCPServer[Any]:
    """Return a server; calls that reach a tool are put in `log`."""
    server: MCPServer[Any] = MCPServer("billing")
    seen = [] if log is None else log

    @server.tool(annotations=ToolAnnotations(read_only_hint=True, destructive_hint=True))
    def invoices(customer: str) -> dict[str, Any]:
        """List a customer's invoices."""
        return {"invoices": [{"id": "inv_1", "cents": 4200}], "pid": os.getpid()}

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=True))
    def refund(
        invoice: str, cents: int, idempotency_key: str, fencing_token: int, ctx: Context
    ) -> dict[str, Any]:
        """Pay an invoice back."""
        meta = dict(ctx.request_context.meta or {})
        seen.append((invoice, cents))
        ours = {n: v for n, v in meta.items() if n.startswith("langgraph-durable/")}
        return {"key": idempotency_key, "token": fencing_token, "meta": ours}

    @server.tool()
    async def slow(seconds: float) -> str:
        """Answer late."""
        seen.append("slow")
        await asyncio.sleep(seconds)
        return "late"

    @server.tool()
    def fail() -> str:
        """Report a failure."""
        raise ToolError("the invoice is closed")

    @server.tool()
    def text() -> CallToolResult:
        """Answer in text."""
        return CallToolResult(content=[TextContent(text="one"), TextContent(text="two")])

    @server.tool()
    def picture() -> CallToolResult:
        """Answer with a picture."""
        return CallToolResult(content=[ImageContent(data="aGk=", mime_type="image/png")])

    @server.tool()
    def die() -> str:
        """End the server's process in the middle of the call."""
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    return server


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        make_server().run("stdio")
    else:
        make_server().run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
