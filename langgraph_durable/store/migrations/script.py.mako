"""${message}."""

import sqlalchemy as sa
from alembic import op
from langgraph_durable.store.schema import UtcTime

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
