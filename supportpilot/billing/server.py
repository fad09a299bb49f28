"""The billing system's two tools, over MCP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import anyio
from anyio import to_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from supportpilot.billing.records import InvoicePage, Receipt, RefundOrder, Refusal
from supportpilot.billing.store import BillingStore

#: A caller that speaks for one tenant says so in `_meta`; it then sees no other's data.
TENANT_META = "langgraph-durable/tenant"
HOLD_POLL_SECONDS = 0.02

Page = Annotated[int, Field(strict=True, ge=1, le=100_000, description="1 is the first")]
Cents = Annotated[int, Field(strict=True, description="how much to pay back")]
Key = Annotated[
    str, Field(max_length=500, description="'<run_id>:<step key>'; a repeat is not paid again")
]
Token = Annotated[
    int, Field(strict=True, description="the run's epoch; an older one than seen is refused")
]


def billing_server(store: BillingStore, hold_dir: Path | None = None) -> MCPServer[None]:
    """Build the MCP server over `store`.

    While a file named like a tool exists in `hold_dir`, that tool's answers are held
    back: what it did is committed and logged, and the caller doesn't know yet.
    """
    server: MCPServer[None] = MCPServer(
        "billing",
        instructions="Invoices of customers, and refunds. Amounts are in cents.",
        log_level="WARNING",
    )

    @server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    async def list_invoices(customer_id: str, ctx: Context[None], page: Page = 1) -> InvoicePage:
        """List a customer's invoices, oldest first, five a page."""
        tenant = _tenant(ctx)
        found = await to_thread.run_sync(
            lambda: store.list_invoices(customer_id, page, tenant=tenant)
        )
        await _held(hold_dir, "list_invoices")
        return found

    @server.tool(
        annotations=ToolAnnotations(
            read_only_hint=False,
            destructive_hint=True,
            idempotent_hint=True,
            open_world_hint=False,
        )
    )
    async def create_refund(
        invoice_id: str,
        amount_cents: Cents,
        idempotency_key: Key,
        fencing_token: Token,
        ctx: Context[None],
    ) -> Receipt:
        """Pay a part or all of an invoice back to the customer."""
        order = RefundOrder(invoice_id, amount_cents, idempotency_key, fencing_token, _tenant(ctx))
        try:
            # The thread runs to its end even when the client hangs up: all or nothing.
            receipt = await to_thread.run_sync(store.refund, order)
        except Refusal as refusal:
            raise ToolError(str(refusal)) from refusal
        finally:
            await _held(hold_dir, "create_refund")
        return receipt

    return server


def _tenant(ctx: Context[None]) -> str | None:
    meta: Mapping[str, object] = ctx.request_context.meta or {}
    tenant = meta.get(TENANT_META)
    return tenant if isinstance(tenant, str) else None


async def _held(hold_dir: Path | None, tool: str) -> None:
    if hold_dir is None:
        return
    gate = anyio.Path(hold_dir / tool)
    while await gate.exists():  # noqa: ASYNC110  # the file belongs to another process
        await anyio.sleep(HOLD_POLL_SECONDS)
