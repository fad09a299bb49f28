"""The first schema: runs, steps, questions, events, workers."""

import sqlalchemy as sa
from alembic import op

from langgraph_durable.store.schema import UtcTime

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table('events',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), autoincrement=True, nullable=False),
    sa.Column('run_id', sa.Text(), nullable=False),
    sa.Column('tenant', sa.Text(), nullable=False),
    sa.Column('type', sa.Text(), nullable=False),
    sa.Column('at', UtcTime, nullable=False),
    sa.Column('actor', sa.Text(), nullable=False),
    sa.Column('data', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('events_of_run', 'events', ['run_id', 'id'], unique=False)
    op.create_table('questions',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('run_id', sa.Text(), nullable=False),
    sa.Column('tenant', sa.Text(), nullable=False),
    sa.Column('key', sa.Text(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('tool', sa.Text(), nullable=False),
    sa.Column('payload', sa.Text(), nullable=False),
    sa.Column('digest', sa.Text(), nullable=False),
    sa.Column('allowed', sa.Text(), nullable=False),
    sa.Column('role', sa.Text(), nullable=True),
    sa.Column('schema', sa.Text(), nullable=True),
    sa.Column('interrupt_id', sa.Text(), nullable=True),
    sa.Column('on_expiry', sa.Text(), nullable=False),
    sa.Column('fallback', sa.Text(), nullable=True),
    sa.Column('state', sa.Text(), nullable=False),
    sa.Column('asked_at', UtcTime, nullable=False),
    sa.Column('expires_at', UtcTime, nullable=True),
    sa.Column('decision', sa.Text(), nullable=True),
    sa.Column('decided_by', sa.Text(), nullable=True),
    sa.Column('decided_at', UtcTime, nullable=True),
    sa.Column('approval_id', sa.Text(), nullable=True),
    sa.Column('approvals', sa.Integer(), server_default='1', nullable=False),
    sa.Column('remind_seconds', sa.Float(), nullable=True),
    sa.Column('remind_at', UtcTime, nullable=True),
    sa.Column('reminded', sa.Integer(), server_default='0', nullable=False),
    sa.Column('escalate_to', sa.Text(), nullable=True),
    sa.Column('escalate_at', UtcTime, nullable=True),
    sa.Column('person', sa.Text(), nullable=True),
    sa.Column('refused_before', sa.Text(), nullable=True),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('questions_decided', 'questions', ['tenant', 'tool', 'digest', 'decided_at'], unique=False, postgresql_where=sa.text("state = 'decided'"), sqlite_where=sa.text("state = 'decided'"))
    op.create_index('questions_to_escalate', 'questions', ['escalate_at'], unique=False, postgresql_where=sa.text("state = 'open' AND escalate_at IS NOT NULL"), sqlite_where=sa.text("state = 'open' AND escalate_at IS NOT NULL"))
    op.create_index('questions_to_remind', 'questions', ['remind_at'], unique=False, postgresql_where=sa.text("state = 'open' AND remind_at IS NOT NULL"), sqlite_where=sa.text("state = 'open' AND remind_at IS NOT NULL"))
    op.create_index('questions_due', 'questions', ['expires_at'], unique=False, postgresql_where=sa.text("state = 'open' AND expires_at IS NOT NULL"), sqlite_where=sa.text("state = 'open' AND expires_at IS NOT NULL"))
    op.create_index('questions_inbox', 'questions', ['tenant', 'asked_at'], unique=False, postgresql_where=sa.text("state = 'open'"), sqlite_where=sa.text("state = 'open'"))
    op.create_index('questions_of_run', 'questions', ['run_id'], unique=False)
    op.create_index('questions_open_key', 'questions', ['run_id', 'key'], unique=True, postgresql_where=sa.text("state = 'open'"), sqlite_where=sa.text("state = 'open'"))
    op.create_table('runs',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('tenant', sa.Text(), nullable=False),
    sa.Column('agent', sa.Text(), nullable=False),
    sa.Column('version', sa.Text(), nullable=False),
    sa.Column('mode', sa.Text(), nullable=False),
    sa.Column('thread', sa.Text(), nullable=False),
    sa.Column('holds_thread', sa.Boolean(), server_default=sa.false(), nullable=False),
    sa.Column('status', sa.Text(), nullable=False),
    sa.Column('priority', sa.Integer(), server_default='0', nullable=False),
    sa.Column('input', sa.Text(), nullable=False),
    sa.Column('output', sa.Text(), nullable=True),
    sa.Column('error', sa.Text(), nullable=True),
    sa.Column('attempts', sa.Integer(), server_default='0', nullable=False),
    sa.Column('max_attempts', sa.Integer(), server_default='3', nullable=False),
    sa.Column('epoch', sa.Integer(), server_default='0', nullable=False),
    sa.Column('progress_epoch', sa.Integer(), server_default='0', nullable=False),
    sa.Column('worker', sa.Text(), nullable=True),
    sa.Column('previous_worker', sa.Text(), nullable=True),
    sa.Column('claimed_from', sa.Text(), nullable=True),
    sa.Column('lease_until', UtcTime, nullable=True),
    sa.Column('run_after', UtcTime, nullable=False),
    sa.Column('deadline_seconds', sa.Float(), nullable=True),
    sa.Column('idempotency_key', sa.Text(), nullable=True),
    sa.Column('asked', sa.Integer(), server_default='0', nullable=False),
    sa.Column('saved_steps', sa.Integer(), server_default='0', nullable=False),
    sa.Column('saved_tokens', sa.Integer(), server_default='0', nullable=False),
    sa.Column('created_at', UtcTime, nullable=False),
    sa.Column('started_at', UtcTime, nullable=True),
    sa.Column('finished_at', UtcTime, nullable=True),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('runs_asleep', 'runs', ['run_after'], unique=False, postgresql_where=sa.text("status = 'sleeping'"), sqlite_where=sa.text("status = 'sleeping'"))
    op.create_index('runs_by_status', 'runs', ['status', 'created_at', 'id'], unique=False)
    op.create_index('runs_by_tenant', 'runs', ['tenant', 'created_at', 'id'], unique=False)
    op.create_index('runs_by_time', 'runs', ['created_at', 'id'], unique=False)
    op.create_index('runs_due', 'runs', [sa.text('priority DESC'), 'run_after', 'id'], unique=False, postgresql_where=sa.text("status = 'queued'"), sqlite_where=sa.text("status = 'queued'"))
    op.create_index('runs_hold_thread', 'runs', ['tenant', 'thread'], unique=True, postgresql_where=sa.text('holds_thread'), sqlite_where=sa.text('holds_thread'))
    op.create_index('runs_idempotency', 'runs', ['tenant', 'idempotency_key'], unique=True, postgresql_where=sa.text('idempotency_key IS NOT NULL'), sqlite_where=sa.text('idempotency_key IS NOT NULL'))
    op.create_index('runs_leased', 'runs', ['agent'], unique=False, postgresql_where=sa.text("status IN ('running', 'cancelling')"), sqlite_where=sa.text("status IN ('running', 'cancelling')"))
    op.create_index('runs_on_thread', 'runs', ['tenant', 'thread', 'created_at'], unique=False, postgresql_where=sa.text("status NOT IN ('succeeded', 'failed', 'cancelled')"), sqlite_where=sa.text("status NOT IN ('succeeded', 'failed', 'cancelled')"))
    op.create_table('steps',
    sa.Column('run_id', sa.Text(), nullable=False),
    sa.Column('key', sa.Text(), nullable=False),
    sa.Column('seq', sa.Integer(), server_default='0', nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('state', sa.Text(), nullable=False),
    sa.Column('fingerprint', sa.Text(), nullable=False),
    sa.Column('request', sa.Text(), nullable=False),
    sa.Column('value', sa.Text(), nullable=True),
    sa.Column('place', sa.Text(), nullable=False),
    sa.Column('error', sa.Text(), nullable=True),
    sa.Column('attempts', sa.Integer(), server_default='0', nullable=False),
    sa.Column('input_tokens', sa.Integer(), server_default='0', nullable=False),
    sa.Column('output_tokens', sa.Integer(), server_default='0', nullable=False),
    sa.Column('approval_id', sa.Text(), nullable=True),
    sa.Column('epoch', sa.Integer(), server_default='0', nullable=False),
    sa.Column('seconds', sa.Float(), server_default='0', nullable=False),
    sa.Column('recorded_at', UtcTime, nullable=False),
    sa.PrimaryKeyConstraint('run_id', 'key')
    )
    op.create_table('workers',
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('agents', sa.Text(), nullable=False),
    sa.Column('seen_at', UtcTime, nullable=False),
    sa.PrimaryKeyConstraint('name')
    )
