"""orphans: what runs or lies on disk, and no job of the database names

Revision ID: 0015
Revises: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "orphans",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("job_id", sa.String(40)),
        sa.Column("name", sa.String(120)),
        sa.Column("tag", sa.String(64)),
        sa.Column("scheduler_id", sa.String(64)),
        sa.Column("state", sa.String(16)),
        sa.Column("folder", sa.Text()),
        sa.Column("first_observed_at", sa.BigInteger(), nullable=False),
        sa.Column("requested", sa.String(16)),
        sa.Column("requested_by", sa.String(128)),
        sa.Column("message", sa.Text(), nullable=False, server_default=""),
    )


def downgrade() -> None:
    op.drop_table("orphans")
