"""A plain MCP client of the billing system, as an agent without the runtime has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mcp import Client
from mcp.types import RequestParamsMeta, TextContent

from supportpilot.billing.server import TENANT_META

ANSWER_SECONDS = 60.0
_PREFIX = "Error executing tool {tool}: "


class BillingError(Exception):
    """The billing system refused a call; the text is its sentence."""


class BillingClient:
    """Calls the billing tools at `url`, a connection a call."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def call(self, tool: str, arguments: Mapping[str, Any], *, tenant: str) -> dict[str, Any]:
        """Call a tool for one tenant and return its structured result.

        Raises:
            BillingError: the billing system answered, and refused.
        """
        meta = cast(RequestParamsMeta, {TENANT_META: tenant})
        async with Client(self._url, read_timeout_seconds=ANSWER_SECONDS) as client:
            result = await client.call_tool(tool, dict(arguments), meta=meta)
        if result.is_error:
            said = " ".join(c.text for c in result.content if isinstance(c, TextContent))
            raise BillingError(said.removeprefix(_PREFIX.format(tool=tool)))
        return dict(result.structured_content or {})
