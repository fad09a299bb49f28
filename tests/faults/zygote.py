"""Starts workers fast: it has imported what they need, and forks.

Each worker is a process of its own with its own signals and its own exit; only the two
seconds of imports are spared. It is asked by lines of JSON: `argv` gives a process id, and `main`
names what it runs; `poll` gives the exit code (negative for a signal) or null.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

for module in (
    "langgraph_durable.cli",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "langgraph_durable.checkpoint.sqlite",
    "langgraph_durable.checkpoint.postgres",
    *sys.argv[1:],
):
    with contextlib.suppress(ImportError):  # not installed: then nobody asks for it
        importlib.import_module(module)


def _start(argv: list[str], env: dict[str, str], log: str, main: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (out, 1), (out, 2)):
            os.dup2(source, target)
        faulthandler.register(signal.SIGUSR1)  # say where every thread is
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(env)
        sys.argv = argv
        code = _main(main)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _main(named: str) -> int:
    module, _, name = named.partition(":")
    try:
        getattr(importlib.import_module(module), name)()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    else:
        code = 0
    threading._shutdown()  # as the interpreter does: wait for threads that aren't daemons
    return code


def _poll(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return None if found == 0 else os.waitstatus_to_exitcode(status)


def main() -> None:
    """Answer until the test ends."""
    for line in sys.stdin:
        ask: dict[str, Any] = json.loads(line)
        if "argv" in ask:
            answer: int | None = _start(**ask)
        else:
            answer = _poll(ask["poll"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
