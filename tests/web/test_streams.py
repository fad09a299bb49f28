"""Following a run by SSE, and waiting for it, at a real server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from langgraph_durable import Decision, Durable
from tests.web.conftest import Site
from tests.web.web_processes import api_processes


@dataclass
class Heard:
    id: str = ""
    event: str = "message"
    data: Any = None


@dataclass
class Served:
    site: Site
    address: str
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.site.secret('agent')}"}
        self.client = httpx.Client(base_url=self.address, headers=headers, timeout=30)

    @property
    def durable(self) -> Durable:
        return self.site.durable

    def listen(self, run_id: str, last: str | None = None) -> Iterator[Heard]:
        headers = {} if last is None else {"Last-Event-ID": last}
        with self.client.stream("GET", f"/v1/runs/{run_id}/events", headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            heard = Heard()
            for line in answer.iter_lines():
                if line.startswith("id:"):
                    heard.id = line[3:].strip()
                elif line.startswith("event:"):
                    heard.event = line[6:].strip()
                elif line.startswith("data:"):
                    heard.data = json.loads(line[5:])
                elif not line and heard.data is not None:
                    yield heard
                    heard = Heard()


@pytest.fixture
def served(site: Site) -> Iterator[Served]:
    with api_processes(site.durable.url) as (address,):
        made = Served(site, address)
        yield made
        made.client.close()


def test_a_stream_tells_what_happens_and_ends_when_the_run_does(served: Served) -> None:
    run_id = served.site.parked()
    heard: list[Heard] = []
    parked = threading.Event()

    def listen() -> None:
        for one in served.listen(run_id):
            heard.append(one)
            if one.event == "run_parked":
                parked.set()

    listening = threading.Thread(target=listen)
    listening.start()
    assert parked.wait(10)
    decided_at = time.monotonic()
    served.durable.decide(served.site.question(run_id), Decision.approve("mei"))
    served.site.work()
    listening.join(10)
    assert not listening.is_alive()
    assert time.monotonic() - decided_at < 5

    events = served.durable.events(run_id)
    assert [one.event for one in heard] == [*(e.type for e in events), "end"]
    assert [one.id for one in heard[:-1]] == [str(e.id) for e in events]
    assert heard[-1].data == {"status": "succeeded"}
    assert heard[0].data["actor"] == "client"


def test_a_broken_stream_is_rejoined_where_it_broke(served: Served) -> None:
    run_id = served.site.parked()
    stream = served.listen(run_id)
    first = [next(stream), next(stream)]
    stream.close()  # type: ignore[attr-defined]

    served.durable.cancel(run_id)
    rest = list(served.listen(run_id, first[-1].id))

    events = served.durable.events(run_id)
    assert [one.id for one in first + rest[:-1]] == [str(e.id) for e in events]
    assert rest[-1].event == "end"
    path = f"/v1/runs/{run_id}/events"
    over = served.client.get(path, headers={"Last-Event-ID": str(events[-1].id)})
    assert (over.status_code, over.content) == (204, b"")


def test_a_stream_rejoined_from_nowhere_is_refused(site: Site) -> None:
    run_id, other = site.parked(), site.parked()
    elsewhere = str(site.durable.events(other)[-1].id)
    agent = site.as_("agent")

    for last in ("x", "-1", "1.5", "9" * 30, "4000000000", "٣", "1; DROP TABLE", elsewhere):
        headers = {"Last-Event-ID": last.encode()}
        answer = agent.get(f"/v1/runs/{run_id}/events", headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 422, (last, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_stream_ends_soon_after_its_key_was_revoked(served: Served) -> None:
    run_id = served.site.parked()
    stream = served.listen(run_id)
    next(stream)

    key = served.durable.keys.verify(served.site.secret("agent"))
    served.durable.keys.revoke(key.id)
    began = time.monotonic()
    rest = list(stream)

    assert time.monotonic() - began < 15
    assert "end" not in [one.event for one in rest]


def test_waiting_says_how_far_the_run_is(served: Served) -> None:
    run_id = served.durable.submit("refund", {"ticket": "broken"}, tenant="t_a")
    wait = f"/v1/runs/{run_id}/wait"

    began = time.monotonic()
    queued = served.client.get(wait, params={"timeout_seconds": 0.5}).json()
    assert queued["outcome"] == "still_running"
    assert 0.4 < time.monotonic() - began < 5
    served.site.work()
    assert served.client.get(wait).json()["outcome"] == "waiting_for_person"

    served.durable.decide(served.site.question(run_id), Decision.approve("mei"))
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(served.client.get(wait, params={"timeout_seconds": 20}))
    )
    waiting.start()
    time.sleep(0.3)
    served.site.work()
    waiting.join(10)
    assert answers[0].json()["outcome"] == "ended"
    assert answers[0].json()["run"]["output"]["paid"] == [{"paid_cents": 1200}]
    for wrong in ("-1", "61", "nan", "inf", "soon"):
        assert served.client.get(wait, params={"timeout_seconds": wrong}).status_code == 422


def test_sixty_who_follow_or_wait_leave_room_for_others(served: Served) -> None:
    """The server's threads are forty; who waits must hold none."""
    run_id = served.site.parked()
    waiting_run = served.durable.submit("echo", 1, tenant="t_a")
    streams = [served.listen(run_id) for _ in range(30)]
    for stream in streams:
        next(stream)
    waits = [
        threading.Thread(
            target=lambda: httpx.get(
                f"{served.address}/v1/runs/{waiting_run}/wait",
                params={"timeout_seconds": 8},
                headers=served.client.headers,
                timeout=30,
            )
        )
        for _ in range(30)
    ]
    for waiting in waits:
        waiting.start()
    time.sleep(0.5)

    took = []
    for _ in range(20):
        began = time.monotonic()
        assert served.client.get("/v1/runs").status_code == 200
        took.append(time.monotonic() - began)

    assert sorted(took)[10] < 1.0, took
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]
    for waiting in waits:
        waiting.join(20)
