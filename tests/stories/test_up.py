"""`langgraph-durable up`: one process that serves, works, and stops in good order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

START_SECONDS = 90


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """SupportPilot with its demo tickets, and what was printed about it."""
    command = [sys.executable, "-m", "supportpilot.up", "--json", "--port", "0"]
    command += ["--folder", str(tmp_path / "var")]
    environment = {k: v for k, v in os.environ.items() if k != "LANGGRAPH_DURABLE_PEPPER"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as child:
        try:
            assert child.stdout is not None
            yield child, json.loads(child.stdout.readline())
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGINT)
                try:
                    child.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)


@pytest.mark.promise("S-82")
@pytest.mark.promise("S-36")
def test_the_five_verdicts_hold_with_real_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "supportpilot.verdicts", "--folder", str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert told.returncode == 0, told.stdout + told.stderr
    lines = told.stdout.splitlines()
    assert [line[:9] for line in lines] == [f"{n}. holds:" for n in range(1, 6)]


@pytest.mark.promise("S-32")
@pytest.mark.promise("S-37")
def test_a_ticket_is_approved_over_http_by_the_printed_keys(
    served: tuple[subprocess.Popen[str], dict[str, object]],
) -> None:
    child, told = served
    keys = told["keys"]
    assert isinstance(keys, dict)

    def client(name: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {keys[name]}"}
        return httpx.Client(base_url=f"{told['url']}/v1", headers=headers, timeout=60)

    with client("agent") as agent, client("supervisor") as supervisor:
        ticket = {"ticket": "Please refund invoice inv_43_03", "customer_id": "c_43"}
        run_id = agent.post("/runs", json={"agent": "support.v2", "input": ticket}).json()["id"]
        waited = agent.get(f"/runs/{run_id}/wait", params={"timeout_seconds": 50}).json()
        assert waited["outcome"] == "waiting_for_person"
        assert agent.post(f"/runs/{run_id}/approve").status_code == 403
        approved = supervisor.post(f"/runs/{run_id}/approve").json()
        assert approved["approved_steps"] == ["refund"]
        ended = agent.get(f"/runs/{run_id}/wait", params={"timeout_seconds": 50}).json()["run"]
        assert (ended["status"], ended["output"]["refund"]["amount_cents"]) == ("succeeded", 4200)
        page = httpx.get(f"{told['url']}/", follow_redirects=True)
        assert page.status_code == 200
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(30) == 0
