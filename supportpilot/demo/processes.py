"""The billing system and the workers, as processes that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from supportpilot.billing.store import BillingStore

LEASE_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.02
STOP_SECONDS = 15.0


class DemoFailed(Exception):
    """The experiment could not be carried out; the text says where it stood."""


@dataclass(frozen=True, slots=True)
class Billing:
    """A running billing system, and the file that it keeps."""

    url: str
    store: BillingStore
    hold_dir: Path

    def hold(self, tool: str) -> None:
        """Keep the answers of a tool back: its effects happen, its caller doesn't know."""
        (self.hold_dir / tool).touch()

    def release(self, tool: str) -> None:
        """Let the answers go."""
        (self.hold_dir / tool).unlink()


@contextmanager
def billing(folder: Path) -> Iterator[Billing]:
    """Start the billing system for as long as the block."""
    db, hold_dir = folder / "billing.db", folder / "hold"
    hold_dir.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "supportpilot.billing"]
    command += ["--db", str(db), "--port", "0", "--hold-dir", str(hold_dir)]
    with (
        (folder / "billing.log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as child,
    ):
        try:
            address = child.stdout.readline() if child.stdout else ""
            if not address:
                raise DemoFailed(f"the billing system did not start; see {folder}/billing.log")
            yield Billing(json.loads(address)["url"], BillingStore(db), hold_dir)
        finally:
            child.kill()


class WorkerProcess:
    """A worker of langgraph_durable in a process of its own."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.killed_at: datetime | None = None
        self._log = folder / f"{name}.log"
        command = [sys.executable, "-m", "langgraph_durable.cli", "worker"]
        command += ["--app", "supportpilot.app:durable", "--name", name]
        command += ["--lease-seconds", str(LEASE_SECONDS)]
        with self._log.open("w") as log:
            self._child = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **environment}
            )
        self.pid = self._child.pid

    def kill(self) -> int:
        """Send SIGKILL and return the signal that ended the process, as the kernel tells it."""
        self._child.send_signal(signal.SIGKILL)
        self._child.wait(STOP_SECONDS)
        self.killed_at = datetime.now(UTC)
        return -self._child.returncode

    def stop(self) -> None:
        """Let the worker drain and exit."""
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()

    def check(self) -> None:
        """Refuse to wait for a worker that has died of something else than the demo."""
        code = self._child.poll()
        if code is not None:
            last = "\n".join(self._log.read_text().splitlines()[-12:])
            raise DemoFailed(f"{self.name} exited by itself with code {code}:\n{last}")


def until(what: str, condition: Callable[[], bool], worker: WorkerProcess | None = None) -> None:
    """Wait for other processes to make `condition` true.

    Raises:
        DemoFailed: they did not in time, or the worker that should died.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if worker is not None:
            worker.check()
        if time.monotonic() > end:
            raise DemoFailed(f"waited {PATIENCE_SECONDS:g} s in vain until {what}")
        time.sleep(POLL_SECONDS)
