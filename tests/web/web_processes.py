"""API processes: real servers, started and ended by the tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]


@contextmanager
def api_processes(url: str, count: int = 1) -> Iterator[list[str]]:
    """Start API processes on a database; yield their addresses; they end by SIGTERM."""
    started = [_start(url) for _ in range(count)]
    try:
        yield [_address(process) for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                assert process.wait(timeout=15) in (0, -signal.SIGTERM)
            finally:
                _end(process)


@contextmanager
def killed_api(url: str) -> Iterator[str]:
    """Start an API process; it ends by SIGKILL."""
    process = _start(url)
    try:
        yield _address(process)
    finally:
        _end(process)


def _start(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.web.serve", url]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    assert port, "the API process did not start"
    address = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{address}/v1/runs", timeout=30).status_code == 401
    return address


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
