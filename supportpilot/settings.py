"""Where SupportPilot finds its database, its billing system and its models."""

from __future__ import annotations

from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Read from the environment: SUPPORTPILOT_DATABASE_URL and so on."""

    model_config = SettingsConfigDict(env_prefix="SUPPORTPILOT_")

    database_url: str = "sqlite:///supportpilot.db"
    billing_url: str = "http://127.0.0.1:8765/mcp"
    #: A refund up to this is made without asking; a supervisor decides on more.
    refund_limit_cents: int = 2_000
    #: "provider:name", such as "openai:gpt-4.1-mini"; without one, rules answer.
    model_fast: str | None = None
    model_smart: str | None = None
    #: A file that gets a line for every call of the rule-based model.
    calls: Path | None = None
