"""attempts that ended without an exit record

Revision ID: 0013
Revises: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("open_spool", sa.Integer()))
    op.add_column("attempts", sa.Column("limit_ends_at", sa.BigInteger()))
    op.add_column("attempts", sa.Column("stop_requested_at", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("attempts", "stop_requested_at")
    op.drop_column("attempts", "limit_ends_at")
    op.drop_column("jobs", "open_spool")
