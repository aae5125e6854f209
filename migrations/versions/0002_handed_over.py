"""when the scheduler was asked, and which nodes failed an attempt

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    # Plain ALTERs: on SQLite a table made anew would take its children's rows with it.
    op.add_column("attempts", sa.Column("last_submit_at", sa.BigInteger(), nullable=True))
    op.add_column("attempts", sa.Column("failed_node", sa.String(length=64), nullable=True))
    op.add_column("attempts", sa.Column("excluded_nodes", JSON, nullable=False, server_default="[]"))
    # What is there may have been handed over at any time since it was made.
    op.execute("UPDATE attempts SET last_submit_at = created_at")


def downgrade() -> None:
    for column in ("excluded_nodes", "failed_node", "last_submit_at"):
        op.drop_column("attempts", column)
