"""API keys."""

import sqlalchemy as sa
from alembic import op

from langgraph_durable.store.schema import UtcTime

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table('api_keys',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('tenant', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('roles', sa.Text(), nullable=False),
    sa.Column('scopes', sa.Text(), nullable=False),
    sa.Column('digest', sa.Text(), nullable=False),
    sa.Column('created_at', UtcTime, nullable=False),
    sa.Column('created_by', sa.Text(), nullable=False),
    sa.Column('expires_at', UtcTime, nullable=True),
    sa.Column('revoked_at', UtcTime, nullable=True),
    sa.Column('revoked_by', sa.Text(), nullable=True),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('api_keys_by_tenant', 'api_keys', ['tenant', 'created_at', 'id'], unique=False)
