"""Alembic's entry: migrates the connection it is handed, or `-x db=PATH` from the command line."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from alembic import context
from sqlmodel import SQLModel

import kclab.db.models  # noqa: F401  (fills SQLModel.metadata)
from kclab.db.session import migration_engine


def migrate(connection: Any) -> None:
    context.configure(
        connection=connection,
        target_metadata=SQLModel.metadata,
        render_as_batch=True,
        compare_type=True,
        compare_server_default=True,
    )
    with warnings.catch_warnings(), context.begin_transaction():
        # Reflection passes over such an index, and the comparison with the models over it, too.
        warnings.filterwarnings("ignore", message=".*expression-based index")
        context.run_migrations()


handed = context.config.attributes.get("connection")
if handed is not None:
    migrate(handed)
else:
    database = Path(context.get_x_argument(as_dictionary=True).get("db", "kclab.db"))
    with migration_engine(database).begin() as connection:
        migrate(connection)
