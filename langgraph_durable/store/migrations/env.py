"""Alembic runs on the connection, and inside the transaction, that `migrate.upgrade` gives."""

from alembic import context

from langgraph_durable.store.migrate import VERSION_TABLE
from langgraph_durable.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
