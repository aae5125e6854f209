"""ends that the accounting may explain later, and jobs that wait

Revision ID: 0038
Revises: 0037
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("attempts", sa.Column("open_evidence", _JSON, nullable=True))
    is_open = sa.text("open_evidence IS NOT NULL")
    op.create_index("ix_attempts_ended_at", "attempts", ["ended_at"], sqlite_where=is_open, postgresql_where=is_open)
    waits = sa.text("condition IS NOT NULL")
    op.create_index("ix_jobs_condition", "jobs", ["condition"], sqlite_where=waits, postgresql_where=waits)


def downgrade() -> None:
    op.drop_index("ix_jobs_condition", "jobs")
    op.drop_index("ix_attempts_ended_at", "attempts")
    op.drop_column("attempts", "open_evidence")
