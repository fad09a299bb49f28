"""API processes: real servers, started and ended by the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]


@contextmanager
def api_processes(url: str, count: int = 1) -> Iterator[list[str]]:
    """Start API processes on a database; yield their addresses."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.web.serve", url],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        addresses = []
        for process in started:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, "the API process did not start"
            addresses.append(f"http://127.0.0.1:{port}")
        for address in addresses:
            assert httpx.get(f"{address}/v1/runs").status_code == 401
        yield addresses
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                assert process.wait(timeout=15) in (0, -15)
            finally:
                process.kill()
                if process.stdout is not None:
                    process.stdout.close()
