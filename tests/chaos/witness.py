"""Triggers that watch the product's tables from inside, and write down what passed.

They see what no later look at the rows can show: a status that was there for a moment, a step
that was written under an old epoch and overwritten since. They are not of the product.
"""

from __future__ import annotations

MOVED = "old.status <> new.status OR old.epoch <> new.epoch"
WRITTEN = "old.state <> new.state OR old.epoch <> new.epoch OR old.value IS {not_} new.value"
ANSWERED = "old.state <> new.state OR old.decision IS {not_} new.decision"

_TABLES = """
CREATE TABLE chaos_moves (id {serial}, run_id TEXT, old TEXT, new TEXT, old_epoch INTEGER, epoch INTEGER);
CREATE TABLE chaos_writes (id {serial}, run_id TEXT, key TEXT, was TEXT, state TEXT, epoch INTEGER,
    run_epoch INTEGER, run_status TEXT);
CREATE TABLE chaos_answers (id {serial}, question_id TEXT, was TEXT, state TEXT, decision TEXT)
"""
_MOVE = "INSERT INTO chaos_moves (run_id, old, new, old_epoch, epoch) VALUES"
_WRITE = (
    "INSERT INTO chaos_writes (run_id, key, was, state, epoch, run_epoch, run_status)"
    " SELECT new.run_id, new.key, {was}, new.state, new.epoch, runs.epoch, runs.status"
    " FROM runs WHERE runs.id = new.run_id"
)
_ANSWER = "INSERT INTO chaos_answers (question_id, was, state, decision) VALUES"

#: (table, event, condition, what is written)
_WATCHED = (
    ("runs", "INSERT", "", f"{_MOVE} (new.id, NULL, new.status, NULL, new.epoch)"),
    (
        "runs", "UPDATE", MOVED,
        f"{_MOVE} (new.id, old.status, new.status, old.epoch, new.epoch)",
    ),
    ("steps", "INSERT", "", _WRITE.format(was="NULL")),
    ("steps", "UPDATE", WRITTEN, _WRITE.format(was="old.state")),
    (
        "questions", "UPDATE", ANSWERED,
        f"{_ANSWER} (new.id, old.state, new.state, new.decision)",
    ),
)  # fmt: skip


def sqlite() -> str:
    """Return the script for SQLite."""
    script = [_TABLES.format(serial="INTEGER PRIMARY KEY")]
    for table, event, condition, act in _WATCHED:
        when = f"WHEN {condition.format(not_='NOT')}" if condition else ""
        script.append(
            f"CREATE TRIGGER chaos_{table}_{event} AFTER {event} ON {table} {when}\n"
            f"BEGIN {act}; END"
        )
    return ";\n".join(script)


def postgres() -> str:
    """Return the script for PostgreSQL."""
    script = [_TABLES.format(serial="BIGSERIAL PRIMARY KEY")]
    for table, event, condition, act in _WATCHED:
        name = f"chaos_{table}_{event}"
        when = f"WHEN ({condition.format(not_='DISTINCT FROM')})" if condition else ""
        script.append(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {act}; RETURN NULL; END $$"
        )
        script.append(
            f"CREATE TRIGGER {name} AFTER {event} ON {table}"
            f" FOR EACH ROW {when} EXECUTE FUNCTION {name}()"
        )
    return ";\n".join(script)
