"""Several approvers, rules that decisions carried, and the outbox."""

import sqlalchemy as sa
from alembic import op

from langgraph_durable.store.schema import UtcTime

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table('approvals',
    sa.Column('question_id', sa.Text(), nullable=False),
    sa.Column('person', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('run_id', sa.Text(), nullable=False),
    sa.Column('said', sa.Text(), nullable=False),
    sa.Column('decision', sa.Text(), nullable=False),
    sa.Column('at', UtcTime, nullable=False),
    sa.PrimaryKeyConstraint('question_id', 'person')
    )
    op.create_index('approvals_of_run', 'approvals', ['run_id'], unique=False)
    op.create_table('outbox',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), autoincrement=True, nullable=False),
    sa.Column('run_id', sa.Text(), nullable=False),
    sa.Column('tenant', sa.Text(), nullable=False),
    sa.Column('key', sa.Text(), nullable=False),
    sa.Column('topic', sa.Text(), nullable=False),
    sa.Column('payload', sa.Text(), nullable=False),
    sa.Column('state', sa.Text(), nullable=False),
    sa.Column('attempts', sa.Integer(), server_default='0', nullable=False),
    sa.Column('next_at', UtcTime, nullable=False),
    sa.Column('error', sa.Text(), nullable=True),
    sa.Column('created_at', UtcTime, nullable=False),
    sa.Column('delivered_at', UtcTime, nullable=True),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('outbox_dead', 'outbox', ['id'], unique=False, postgresql_where=sa.text("state = 'dead'"), sqlite_where=sa.text("state = 'dead'"))
    op.create_index('outbox_due', 'outbox', ['next_at'], unique=False, postgresql_where=sa.text("state = 'pending'"), sqlite_where=sa.text("state = 'pending'"))
    op.create_index('outbox_key', 'outbox', ['run_id', 'key'], unique=True)
    op.create_index('outbox_pending', 'outbox', ['run_id', 'id'], unique=False, postgresql_where=sa.text("state = 'pending'"), sqlite_where=sa.text("state = 'pending'"))
    op.create_table('rules',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('tenant', sa.Text(), nullable=False),
    sa.Column('data', sa.Text(), nullable=False),
    sa.Column('role', sa.Text(), nullable=True),
    sa.Column('approvals', sa.Integer(), server_default='1', nullable=False),
    sa.Column('question_id', sa.Text(), nullable=False),
    sa.Column('run_id', sa.Text(), nullable=False),
    sa.Column('made_by', sa.Text(), nullable=False),
    sa.Column('made_at', UtcTime, nullable=False),
    sa.Column('expires_at', UtcTime, nullable=True),
    sa.Column('revoked_at', UtcTime, nullable=True),
    sa.Column('revoked_by', sa.Text(), nullable=True),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('rules_by_tenant', 'rules', ['tenant', 'made_at', 'id'], unique=False)
