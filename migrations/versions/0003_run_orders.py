"""Runs in the order of their command or status, the newest of each first"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # In words: reflection drops a column's DESC, so that Alembic would compare an index with DESC
    # in the model as another one.
    op.execute("CREATE INDEX ix_run_command_newest ON run (command, id DESC)")
    op.execute("CREATE INDEX ix_run_status_newest ON run (status, id DESC)")


def downgrade() -> None:
    op.drop_index("ix_run_status_newest", table_name="run")
    op.drop_index("ix_run_command_newest", table_name="run")
