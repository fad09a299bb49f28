"""Whether the database is encrypted, and the key of its digests."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0004"


def upgrade() -> None:
    op.create_table('encryption',
    sa.Column('id', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('digests', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
