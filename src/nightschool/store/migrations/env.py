"""Run by alembic for each command, with the connection that `migrate.py` hands over."""

from alembic import context

from nightschool.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
