"""the faults of nodes over all jobs, and the nodes that an attempt excludes because of them

Revision ID: 0035
Revises: 0034
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "node_faults",
        sa.Column("attempt_id", sa.String(32), primary_key=True),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(40).with_variant(sa.String(40, collation="C"), "postgresql"), nullable=False),
        sa.Column("created_by", sa.String(128), nullable=False),
        sa.Column("attempt", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_node_faults_created_at", "node_faults", ["created_at"])
    op.add_column("attempts", sa.Column("cluster_exclusions", _JSON, nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("attempts", "cluster_exclusions")
    op.drop_table("node_faults")
