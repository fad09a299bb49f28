"""Real processes of a test: started by a fork, waited for, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 30.0
T = TypeVar("T")


def eventually(
    look: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS, context: Any = None
) -> T:
    """Return the first true answer; what is waited for is always bounded."""
    until = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > until:
            said = context() if context is not None else ""
            raise AssertionError(f"{what}: not within {seconds:g} s\n{said}")
        time.sleep(0.01)


class Zygote:
    """The process that forks workers (see `zygote`); it imports these modules as well."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.zygote", *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def ask(self, **asked: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


class WorkerProcess:
    """A worker: its process id, its log, its end."""

    def __init__(
        self,
        zygote: Zygote,
        argv: list[str],
        env: dict[str, str],
        log: Path,
        main: str = "langgraph_durable.cli:main",
    ) -> None:
        self._zygote, self.log_path = zygote, log
        self.pid: int = zygote.ask(argv=argv, env=env, log=str(log), main=main)
        self.returncode: int | None = None

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._zygote.ask(poll=self.pid)
        return self.returncode

    def is_stopped(self) -> bool:
        """Whether every thread stands still: a signal takes effect a little later."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)

    @property
    def is_alive(self) -> bool:
        return self.poll() is None

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        eventually(lambda: not self.is_alive, f"end of worker {self.pid}", seconds, self.log)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """SIGKILL, and make sure that it was this that ended it."""
        self.send(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def ready(self) -> WorkerProcess:
        eventually(lambda: "serves" in self.log(), "a worker that serves", context=self.log)
        return self
