"""sweeps, and which job is a member of which

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("created_by", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("max_parallel", _BIG, nullable=True),
        sa.Column("members", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sweeps")),
    )
    op.add_column("jobs", sa.Column("sweep_id", sa.String(40), nullable=True))
    op.add_column("jobs", sa.Column("sweep_parallel", _BIG, nullable=True))
    op.create_index(op.f("ix_jobs_sweep_id_id"), "jobs", ["sweep_id", "id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_jobs_sweep_id_id"), "jobs")
    with op.batch_alter_table("jobs") as batch:
        batch.drop_column("sweep_parallel")
        batch.drop_column("sweep_id")
    op.drop_table("sweeps")
