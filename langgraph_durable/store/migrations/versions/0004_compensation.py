"""What undoes a step, and that a run is being unwound."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("runs", sa.Column("unwinding", sa.Text(), nullable=True))
    op.add_column("steps", sa.Column("compensation", sa.Text(), nullable=True))
