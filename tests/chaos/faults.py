"""The plan of faults, the same for a seed; and how each is done, and seen to have landed."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.chaos.databases import Database, Postgres, Sqlite
from tests.chaos.town import Town
from tests.faults.processes import WorkerProcess, eventually

#: How often each fault comes, against the others.
WEIGHTS: Mapping[str, float] = {
    "kill worker": 70,
    "kill all workers": 3,
    "stop worker in good order": 3,
    "freeze worker": 20,
    "kill API": 6,
    "kill ledger": 6,
    "end all connections": 4,
    "restart server": 1,
    "crash server": 1,
    "fill disk": 2,
}
ONLY_ON = {
    "end all connections": "postgres", "restart server": "postgres", "crash server": "postgres",
    "fill disk": "sqlite",
}  # fmt: skip
#: Seconds that the clocks of workers are off. On PostgreSQL leases go by the server's clock. On
#: SQLite they go by the workers' own, which may differ by less than two thirds of a lease: more,
#: and a worker whose clock is fast takes over runs that are alive (each write is still fenced).
SKEWS: Mapping[str, tuple[float, ...]] = {"postgres": (-2.0, 0.0, 2.0), "sqlite": (-0.6, 0.0, 0.6)}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to go wrong: how long after the last one, and to whom."""

    after: float
    what: str
    whom: float  # picks among those who live, 0 to 1
    seconds: float  # for what lasts; of a killed worker, how long until the next one comes
    skew: float  # of the clock of the worker that comes


@dataclass(frozen=True, slots=True)
class Landed:
    """A fault that was done, and seen."""

    at: float  # seconds since the campaign began
    what: str


def plan(kind: str, seed: int, every: float, lease: float, can_fill: bool) -> Iterator[Fault]:
    """Return faults without end."""
    chance = random.Random(f"{seed}/faults")
    names = [name for name in WEIGHTS if ONLY_ON.get(name, kind) == kind]
    if not can_fill and "fill disk" in names:
        names.remove("fill disk")
    weights = [WEIGHTS[name] for name in names]
    while True:
        what = chance.choices(names, weights)[0]
        lasts = lease * (1.15 + chance.random() / 2) if what == "freeze worker" else chance.random()
        yield Fault(
            min(chance.expovariate(1 / every), 4 * every),
            what,
            chance.random(),
            lasts,
            chance.choice(SKEWS[kind]),
        )


@dataclass(slots=True)
class Faults:
    """Does what the plan says, in the one thread that starts and ends processes."""

    town: Town
    plan: Iterator[Fault]
    size: int  # workers
    skews: Iterator[float]
    began: float = field(default_factory=time.monotonic)
    landed: list[Landed] = field(default_factory=list)
    lives: list[float] = field(default_factory=list)  # the skew of each worker that ever started
    _frozen: list[tuple[float, WorkerProcess]] = field(default_factory=list)
    _to_come: list[tuple[float, float]] = field(default_factory=list)  # (when, its skew)

    def run(self, seconds: float, kills: int | None = None) -> None:
        """Make things go wrong for so long, or for so many kills, then let everything live again."""
        for _ in range(self.size):
            self._start(next(self.skews))
        until = self.began + seconds
        for fault in self.plan:
            due = time.monotonic() + fault.after
            while time.monotonic() < min(due, until):
                self._tend()
                time.sleep(0.02)
            if time.monotonic() >= until or (kills is not None and self.kills >= kills):
                break
            _DO[fault.what](self, fault)
        self.calm()

    def calm(self) -> None:
        """Wake who is frozen and bring who is missing, with clocks that are right.

        Again and again until the end: who was starting as the faults ended may fail yet.
        """
        for _, worker in self._frozen:
            if worker.is_alive:
                worker.send(signal.SIGCONT)
        self._frozen.clear()
        self._to_come.clear()
        if not self.town.api.is_alive:
            self.town.start_api(wait=False)
        while len(self.town.alive()) < self.size:
            self._start(0.0)

    def counts(self) -> Counter[str]:
        """Return how often each fault landed."""
        return Counter(landed.what for landed in self.landed)

    @property
    def kills(self) -> int:
        """How many processes were ended by SIGKILL."""
        return sum(landed.what.startswith("SIGKILL") for landed in self.landed)

    # --- between faults ----------------------------------------------------------------

    def _tend(self) -> None:
        now = time.monotonic()
        for when, worker in [entry for entry in self._frozen if entry[0] <= now]:
            self._frozen.remove((when, worker))
            if worker.is_alive:
                worker.send(signal.SIGCONT)
                self._note("SIGCONT frozen worker")
        for entry in [entry for entry in self._to_come if entry[0] <= now]:
            self._to_come.remove(entry)
            self._start(entry[1])
        if not self.town.api.is_alive:  # it could not start, as the database was away
            self.town.start_api(wait=False)
        missing = self.size - len(self.town.alive()) - len(self._to_come)
        for _ in range(missing):  # one that ended by itself, or in good order
            self._start(next(self.skews))

    def _start(self, skew: float) -> None:
        self.lives.append(skew)
        self.town.start_worker(skew)

    def _note(self, what: str) -> None:
        self.landed.append(Landed(round(time.monotonic() - self.began, 2), what))

    def _replace(self, fault: Fault) -> None:
        # most are there again at once: what is to be killed must be at work
        wait = fault.seconds if fault.whom < 0.2 else 0.0
        self._to_come.append((time.monotonic() + wait, fault.skew))

    def _kill(self, process: WorkerProcess, what: str) -> None:
        """SIGKILL; it counts if it was that which ended the process."""
        if process.is_alive:
            process.send(signal.SIGKILL)
        if process.wait() == -signal.SIGKILL:
            self._note(f"SIGKILL {what}")

    # --- the faults --------------------------------------------------------------------

    def kill_worker(self, fault: Fault) -> None:
        """SIGKILL one worker: starting or at work, and now and then one that is frozen."""
        alive = self.town.alive() if fault.seconds < 0.1 else self._awake()
        if alive:
            self._kill(alive[int(fault.whom * len(alive))], "worker")
            self._replace(fault)

    def kill_all(self, fault: Fault) -> None:
        """SIGKILL all workers in one moment."""
        alive = list(self.town.alive())
        for worker in alive:
            worker.send(signal.SIGKILL)
        for worker in alive:
            self._kill(worker, "worker")
            self._replace(fault)

    def stop_worker(self, fault: Fault) -> None:
        """SIGTERM: it hands its runs over."""
        alive = self._awake()
        if alive:
            alive[int(fault.whom * len(alive))].send(signal.SIGTERM)
            self._note("SIGTERM worker")

    def freeze(self, fault: Fault) -> None:
        """SIGSTOP a worker for longer than its lease: it wakes in the middle of what it did."""
        awake = self._awake()
        if len(awake) < 2:
            return
        worker = awake[int(fault.whom * len(awake))]
        worker.send(signal.SIGSTOP)
        eventually(lambda: worker.is_stopped() or not worker.is_alive, "a worker that is stopped")
        if not worker.is_alive:  # it was on its way out by a SIGTERM: nothing landed
            return
        self._frozen.append((time.monotonic() + fault.seconds, worker))
        self._note("SIGSTOP worker beyond its lease")

    def _awake(self) -> list[WorkerProcess]:
        asleep = [worker for _, worker in self._frozen]
        return [worker for worker in self.town.alive() if worker not in asleep]

    def kill_api(self, fault: Fault) -> None:
        """SIGKILL the API; it is back at once."""
        self._kill(self.town.api, "API")
        self.town.start_api(wait=False)

    def kill_ledger(self, fault: Fault) -> None:
        """SIGKILL the ledger, which is away for a while."""
        self.town.kill_ledger()
        self._note("SIGKILL ledger")
        time.sleep(fault.seconds / 2)
        self.town.start_ledger()

    def end_connections(self, fault: Fault) -> None:
        """Have the server end every connection."""
        if _postgres(self.town.database).terminate():
            self._note("pg_terminate_backend on all connections")

    def restart(self, fault: Fault) -> None:
        """Stop and start the server."""
        _postgres(self.town.database).restart("fast")
        self._note("PostgreSQL stopped and started")

    def crash(self, fault: Fault) -> None:
        """End the server as a crash would, so that it recovers from its log."""
        _postgres(self.town.database).restart("immediate")
        self._note("PostgreSQL crashed and recovered")

    def fill_disk(self, fault: Fault) -> None:
        """Leave no space on the disk of the database for a while."""
        database = self.town.database
        assert isinstance(database, Sqlite)
        for _, worker in self._frozen:  # one of them may hold the lock of the file
            if worker.is_alive:
                worker.send(signal.SIGCONT)
        self._frozen.clear()
        if database.fill():
            self._note("disk full")
        time.sleep(0.5 + 2 * fault.seconds)
        database.free()


def _postgres(database: Database) -> Postgres:
    assert isinstance(database, Postgres)
    return database


_DO: Mapping[str, Callable[[Faults, Fault], None]] = {
    "kill worker": Faults.kill_worker,
    "kill all workers": Faults.kill_all,
    "stop worker in good order": Faults.stop_worker,
    "freeze worker": Faults.freeze,
    "kill API": Faults.kill_api,
    "kill ledger": Faults.kill_ledger,
    "end all connections": Faults.end_connections,
    "restart server": Faults.restart,
    "crash server": Faults.crash,
    "fill disk": Faults.fill_disk,
}
