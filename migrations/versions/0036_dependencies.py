"""dependencies between jobs

Revision ID: 0036
Revises: 0035
"""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

_BIG_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_PUBLIC_ID = sa.String(40).with_variant(sa.String(40, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "job_dependencies",
        sa.Column("job_pk", _BIG_INT, sa.ForeignKey("jobs.pk", ondelete="CASCADE"), primary_key=True),
        sa.Column("prerequisite_id", _PUBLIC_ID, primary_key=True),
        sa.Column("any_end", sa.Boolean(), nullable=False),
        sa.Column("deleted_as", sa.String(16)),
    )
    op.create_index("ix_job_dependencies_prerequisite_id", "job_dependencies", ["prerequisite_id"])
    op.add_column("jobs", sa.Column("has_prerequisites", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("jobs", "has_prerequisites")
    op.drop_table("job_dependencies")
