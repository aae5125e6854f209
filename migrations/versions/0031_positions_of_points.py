"""positions of points in their spools, repeated steps and curves that begin again

Revision ID: 0031
Revises: 0030
"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("points", sa.Column("position", sa.BigInteger()))
    op.add_column("downsample_states", sa.Column("revision", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "curve_revisions",
        sa.Column("job_pk", sa.BigInteger(), nullable=False),
        sa.Column("execution", sa.BigInteger(), nullable=False),
        sa.Column("key_pk", sa.BigInteger(), nullable=False),
        sa.Column("spool", sa.BigInteger(), nullable=False),
        sa.Column("repeats", sa.BigInteger(), nullable=False),
        sa.Column("restart", sa.BigInteger()),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=op.f("fk_curve_revisions_job_pk"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["key_pk"], ["metric_keys.pk"], name=op.f("fk_curve_revisions_key_pk")),
        sa.PrimaryKeyConstraint("job_pk", "execution", "key_pk", "spool", name=op.f("pk_curve_revisions")),
    )


def downgrade() -> None:
    op.drop_table("curve_revisions")
    op.drop_column("downsample_states", "revision")
    op.drop_column("points", "position")
