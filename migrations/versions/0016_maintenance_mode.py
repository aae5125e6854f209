"""maintenance mode

Revision ID: 0016
Revises: 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "maintenance_mode",
        sa.Column("instance", sa.String(32), primary_key=True),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("started_by", sa.String(128), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("maintenance_mode")
