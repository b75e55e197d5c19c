"""Runs in the order of how long they took"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # In words: reflection passes over an index of an expression, so that a migration that recreates
    # `run` has to make this one again. What the expression is made of is in the index, too: SQLite
    # would else look into the table for each of its rows.
    op.execute(
        "CREATE INDEX ix_run_took ON run (coalesce(finished_us, heartbeat_us) - started_us DESC,"
        " id DESC, started_us, finished_us, heartbeat_us)"
    )


def downgrade() -> None:
    op.drop_index("ix_run_took", table_name="run")
