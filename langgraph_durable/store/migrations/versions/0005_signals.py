"""Signals to runs; and when a parked run wakes by itself, whatever it waits for beside."""

import sqlalchemy as sa
from alembic import op

from langgraph_durable.store.schema import UtcTime

revision = "0005"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "signals",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("sent_by", sa.Text(), nullable=False),
        sa.Column("sent_at", UtcTime, nullable=False),
        sa.Column("taken_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index("signals_id", "signals", ["run_id", "id"], unique=True)
    op.create_index(
        "signals_untaken",
        "signals",
        ["run_id", "event", "number"],
        unique=False,
        postgresql_where=sa.text("taken_by IS NULL"),
        sqlite_where=sa.text("taken_by IS NULL"),
    )
    op.add_column("runs", sa.Column("wake_at", UtcTime, nullable=True))
    op.execute("UPDATE runs SET wake_at = run_after WHERE status = 'sleeping'")
    op.create_index(
        "runs_to_wake",
        "runs",
        ["wake_at"],
        unique=False,
        postgresql_where=sa.text("wake_at IS NOT NULL"),
        sqlite_where=sa.text("wake_at IS NOT NULL"),
    )
    op.drop_index("runs_asleep", "runs")
