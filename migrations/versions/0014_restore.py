"""names of attempts' folders, and spools to read again after a restore

Revision ID: 0014
Revises: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("folder", sa.String(64)))
    op.add_column("attempts", sa.Column("spool_unread", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("attempts", "spool_unread")
    op.drop_column("attempts", "folder")
