"""The billing system: an MCP server of its own, over its own SQLite file."""
