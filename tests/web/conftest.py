"""An application on each database, with keys of two tenants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.testclient import TestClient

from langgraph_durable import Durable, Worker
from langgraph_durable.web import create_app
from tests.web.web_shop import shop


@dataclass
class Site:
    """The shop behind HTTP: `site.as_("supervisor").post(...)`."""

    durable: Durable
    ledger: list[tuple[str, int]]
    clients: list[TestClient] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.app = create_app(self.durable)
        self.secrets: dict[tuple[str, str], str] = {}

    def secret(self, role: str, tenant: str = "t_a") -> str:
        if (role, tenant) not in self.secrets:
            issued = self.durable.keys.create(
                tenant=tenant, roles=[role], name=f"{role} of {tenant}"
            )
            self.secrets[role, tenant] = issued.secret
        return self.secrets[role, tenant]

    def client(self, secret: str | None = None) -> TestClient:
        headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        client = TestClient(self.app, headers=headers, raise_server_exceptions=False)
        self.clients.append(client)
        return client

    def as_(self, role: str, tenant: str = "t_a") -> TestClient:
        return self.client(self.secret(role, tenant))

    def work(self) -> None:
        """Let a worker run what is queued."""
        worker = Worker(self.durable, lease_seconds=30)
        while worker.run_once() is not None:
            pass

    def parked(self, agent: str = "refund", tenant: str = "t_a", **given: Any) -> str:
        """Return a run that waits for a person."""
        run_id = self.durable.submit(agent, given or {"ticket": "broken"}, tenant=tenant)
        self.work()
        assert self.durable.get(run_id).status.value == "waiting_human"
        return run_id

    def question(self, run_id: str) -> str:
        """Return the id of a run's first open question."""
        return self.durable.questions(run_id=run_id)[0].id


@pytest.fixture
def site(database_url: str) -> Iterator[Site]:
    ledger: list[tuple[str, int]] = []
    made = Site(shop(database_url, ledger), ledger)
    yield made
    for client in made.clients:
        client.close()
    made.durable.store.engine.dispose()
