"""fine tunes

Revision ID: 0023
Revises: 0022
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_ID = sa.String(40).with_variant(sa.String(40, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "fine_tunes",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("result", sa.String(400), nullable=False),
        sa.Column("method", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("training_file", sa.String(64), nullable=False),
        sa.Column("validation_file", sa.String(64)),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("model_deleted_at", sa.BigInteger()),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_fine_tunes_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_fine_tunes")),
        sa.UniqueConstraint("result", name=op.f("uq_fine_tunes_result")),
    )


def downgrade() -> None:
    op.drop_table("fine_tunes")
