"""start estimates

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "start_estimates",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("created_by", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("script", sa.Text(), nullable=False),
        sa.Column("answered_at", sa.BigInteger(), nullable=True),
        sa.Column("accepted", sa.Boolean(), nullable=True),
        sa.Column("estimated_start", sa.BigInteger(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_start_estimates")),
    )
    op.create_index(op.f("ix_start_estimates_answered_at"), "start_estimates", ["answered_at"])


def downgrade() -> None:
    op.drop_table("start_estimates")
