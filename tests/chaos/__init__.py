"""Chaos: workers, an API and a ledger that are killed at random, and a checker that counts.

    python -m tests.chaos --db postgres --seed 1 --minutes 5

`clients` orders and decides over HTTP, `faults` kills, `ledger` is the world outside,
`witness` watches the database by triggers, `checker` counts afterwards what went wrong.
"""
