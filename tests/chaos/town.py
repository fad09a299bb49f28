"""The processes of a campaign: a ledger, an API, some workers; and how each is started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.chaos.databases import Database
from tests.faults.processes import ROOT, WorkerProcess, Zygote, eventually

PEPPER = "a pepper for the chaos campaign"
CLI = "langgraph_durable.cli:main"
API = "tests.chaos.serve:main"
TENANT = "t_chaos"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def is_reachable(port: int) -> bool:
    """Whether somebody listens."""
    try:
        socket.create_connection(("127.0.0.1", port), 0.5).close()
    except OSError:
        return False
    return True


def _secret(made: WorkerProcess) -> str:
    if made.wait() != 0:
        raise RuntimeError(made.log())
    return made.log().split()[-1]


class Town:
    """What runs. Only the thread of the faults starts and ends processes."""

    def __init__(self, database: Database, folder: Path, zygote: Zygote, lease: float) -> None:
        self.database, self.folder, self._zygote, self.lease = database, folder, zygote, lease
        self.api_port, self.ledger_port = _free_port(), _free_port()
        self.ledger_path = folder / "ledger.db"
        self.workers: list[WorkerProcess] = []
        self.started = 0
        self.start_ledger()
        making = {name: self._make_key(name) for name in ("mei", "tom")}
        self.keys = {name: _secret(made) for name, made in making.items()}
        self.database.watch()
        self.start_api()

    # --- one by one --------------------------------------------------------------------

    def _fork(self, name: str, argv: list[str], main: str = CLI, skew: float = 0) -> WorkerProcess:
        env = {
            "CHAOS_URL": self.database.url,
            "CHAOS_LEDGER": str(self.ledger_port),
            "CHAOS_API": str(self.api_port),
            "CHAOS_NAME": name,
            "CHAOS_SKEW": str(skew),
            "LANGGRAPH_DURABLE_PEPPER": PEPPER,
        }
        log = self.folder / f"{name}.log"
        return WorkerProcess(self._zygote, ["langgraph-durable", *argv], env, log, main)

    def _make_key(self, name: str) -> WorkerProcess:
        """Have the command line make an API key; the first of them also makes the schema."""
        argv = ["keys", "create", "--app", "tests.chaos.app:durable", "--tenant", TENANT]
        argv += ["--name", name]
        for role in ("agent", "operator", "supervisor"):
            argv += ["--role", role]
        return self._fork(f"key-{name}", argv)

    def start_worker(self, skew: float = 0.0) -> WorkerProcess:
        """Start one worker whose machine's clock is off by some seconds."""
        self.started += 1
        name = f"w{self.started}"
        argv = ["worker", "--app", "tests.chaos.app:durable", "--name", name]
        argv += ["--lease-seconds", str(self.lease), "--concurrency", "4", "--drain-seconds", "5"]
        argv += ["--log-level", "warning"]
        worker = self._fork(name, argv, skew=skew)
        self.workers.append(worker)
        return worker

    def start_api(self, *, wait: bool = True) -> None:
        """Start the API, and wait until it listens."""
        self.api = self._fork("api", [], API)
        if wait:
            eventually(lambda: is_reachable(self.api_port), "an API", context=self.api.log)

    def start_ledger(self) -> None:
        """Start the ledger and wait until it listens."""
        argv = [sys.executable, "-m", "tests.chaos.ledger", str(self.ledger_port)]
        self.ledger = subprocess.Popen([*argv, str(self.ledger_path)], cwd=ROOT)
        eventually(lambda: is_reachable(self.ledger_port), "a ledger")

    # --- their ends --------------------------------------------------------------------

    def alive(self) -> list[WorkerProcess]:
        """Return the workers that live, frozen or not, and forget the others."""
        self.workers = [worker for worker in self.workers if worker.is_alive]
        return self.workers

    def kill_ledger(self) -> None:
        """SIGKILL the ledger; asserted to have been what ended it."""
        self.ledger.kill()
        assert self.ledger.wait(10) == -signal.SIGKILL

    def close(self) -> None:
        """End everything."""
        for worker in [*self.alive(), self.api]:
            if worker.is_alive:
                worker.kill()
        if self.ledger.poll() is None:
            self.kill_ledger()

    def logs(self) -> str:
        """Return the ends of what the processes said, the newest last."""
        found = sorted(self.folder.glob("*.log"), key=os.path.getmtime)
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in found)
