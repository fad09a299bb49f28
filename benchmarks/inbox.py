"""The run list and the inbox of one tenant with very many runs: `python -m benchmarks.inbox`.

100,000 runs, 10,000 of them parked with an open question, all of one tenant, on PostgreSQL;
the API and the page in a process of their own, asked over HTTP by one client and by several.
It prints the median and the 95th percentile of each address, and fails over the goal.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx

from benchmarks.databases import Databases
from benchmarks.systems.filled import Filled
from langgraph_durable import Durable

FINISHED, PARKED = 90_000, 10_000
ROUNDS, CLIENTS = 200, 4
GOAL_SECONDS = 0.1
PEPPER = "a pepper of at least sixteen characters"
TENANT = "t_0"
ADDRESSES = (
    "/v1/runs",
    "/v1/runs?status=waiting_human",
    "/v1/runs?agent=chain",
    "/v1/runs?cursor=old-50000",
    "/v1/questions",
    "/v1/questions?cursor=q-95000",
    "/",
    "/?cursor=q-95000",
    "/runs",
    "/runs?status=waiting_human",
    "/runs/old-95000",
)


def serve(url: str) -> None:
    """Serve the API and the page on a free port, which is printed."""
    import uvicorn

    from langgraph_durable.up import listen
    from langgraph_durable.web import create_app

    listening = listen("127.0.0.1", 0)
    print(listening.getsockname()[1], flush=True)
    durable = Durable(url, pepper=PEPPER)
    uvicorn.Server(uvicorn.Config(create_app(durable), log_level="warning")).run([listening])


@contextmanager
def _server(url: str) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.inbox", "serve", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def _timed(ask: Callable[[], httpx.Response], rounds: int) -> list[float]:
    took = []
    for _ in range(rounds):
        started = time.perf_counter()
        answer = ask()
        took.append(time.perf_counter() - started)
        answer.raise_for_status()
        assert answer.status_code == 200, answer.status_code  # not sent to the login
    return took


def _client(address: str, secret: str) -> httpx.Client:
    client = httpx.Client(base_url=address, timeout=30)
    client.headers["Authorization"] = f"Bearer {secret}"
    assert client.post("/login", data={"secret": secret}).status_code == 303
    return client


def _told(took: list[float]) -> tuple[float, float]:
    return statistics.median(took), statistics.quantiles(took, n=20)[-1]


def main() -> int:
    """Fill, ask, print; 1 if an address is slower than the goal."""
    databases = Databases()
    try:
        url = databases.fresh("postgres")
        filled = Filled(url, tenants=1)
        filled.fill(FINISHED, PARKED)
        keys = Durable(url, pepper=PEPPER).keys
        secret = keys.create(tenant=TENANT, roles=["supervisor"], name="mei").secret
        with _server(url) as address:
            return _ask_all(address, secret)
    finally:
        databases.close()


def _ask_all(address: str, secret: str) -> int:
    clients = [_client(address, secret) for _ in range(CLIENTS)]
    print(f"| address | median, p95 (ms) | median, p95 of {CLIENTS} clients at once (ms) |")
    print("| --- | ---: | ---: |")
    too_slow = False
    for path in ADDRESSES:
        _timed(lambda path=path: clients[0].get(path), 5)  # type: ignore[misc]
        alone = _told(_timed(lambda path=path: clients[0].get(path), ROUNDS))  # type: ignore[misc]
        with ThreadPoolExecutor(CLIENTS) as pool:
            asked = [
                pool.submit(_timed, lambda c=c, path=path: c.get(path), ROUNDS // CLIENTS)  # type: ignore[misc]
                for c in clients
            ]
            together = _told([one for each in asked for one in each.result()])
        too_slow = too_slow or alone[1] > GOAL_SECONDS
        shown = (f"{m * 1000:.1f}, {p * 1000:.1f}" for m, p in (alone, together))
        print(f"| `{path}` | {' | '.join(shown)} |", flush=True)
    return int(too_slow)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        sys.exit(main())
