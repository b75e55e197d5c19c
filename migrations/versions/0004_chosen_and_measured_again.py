"""Tell what was measured again from what chose itself, without leaving the index"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS = (
    "scope",
    "exact",
    "boundary_id",
    "validity_id",
    "config_id",
    "measured_us",
    "ratio",
    "verdict",
    "is_control",
    "required_workspace",
    "checked",
)


def upgrade() -> None:
    # The first stores of revision 0002 were made before it had this index.
    op.drop_index("ix_fc2_result_best", table_name="fc2_result", if_exists=True)
    op.create_index("ix_fc2_result_best", "fc2_result", [*COLUMNS, "stage"])


def downgrade() -> None:
    op.drop_index("ix_fc2_result_best", table_name="fc2_result")
    op.create_index("ix_fc2_result_best", "fc2_result", list(COLUMNS))
