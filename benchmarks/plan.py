"""How much is measured: in full, in a hurry, or for a look while developing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and numbers of rounds."""

    rounds: int = 5
    runs: int = 50
    commits: int = 400
    commit_rounds: int = 8
    replay_steps: int = 1000
    replay_curve: tuple[int, ...] = (10, 100, 1000, 5000)
    replay_rounds: int = 3
    one_steps: int = 20
    idle_seconds: float = 8.0
    storage_nodes: tuple[int, ...] = (25, 50, 100)
    finished: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    parked: int = 100_000
    claims: int = 100
    crowds: tuple[int, ...] = (1, 2, 4, 8)
    crowd_runs: int = 16
    in_flight: int = 1000
    long_steps: int = 5000


FULL = Plan()
QUICK = Plan(
    rounds=1,
    runs=8,
    commits=200,
    commit_rounds=2,
    replay_steps=200,
    replay_curve=(10, 100),
    replay_rounds=1,
    one_steps=3,
    idle_seconds=3.0,
    storage_nodes=(10, 20, 40),
    finished=(1_000, 10_000),
    parked=2_000,
    claims=20,
    crowds=(1, 4),
    crowd_runs=4,
    in_flight=100,
    long_steps=300,
)
TINY = Plan(
    rounds=1,
    runs=5,
    commits=50,
    commit_rounds=2,
    replay_steps=50,
    replay_curve=(10, 50),
    replay_rounds=1,
    one_steps=2,
    idle_seconds=1.0,
    storage_nodes=(5, 10, 20),
    finished=(100, 1_000),
    parked=100,
    claims=5,
    crowds=(1, 2),
    crowd_runs=2,
    in_flight=20,
    long_steps=100,
)
PLANS = {"full": FULL, "quick": QUICK, "tiny": TINY}
