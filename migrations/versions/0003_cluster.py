"""what there is to run on, and when the scheduler expects to start a job

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "clusters",
        sa.Column("backend", sa.String(length=16), nullable=False),
        sa.Column("polled_at", sa.BigInteger(), nullable=False),
        sa.Column("taken_at", sa.BigInteger(), nullable=True),
        sa.Column("snapshot", JSON, nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("backend", name=op.f("pk_clusters")),
    )
    op.add_column("attempts", sa.Column("estimated_start", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("attempts", "estimated_start")
    op.drop_table("clusters")
