"""times of log chunks

Revision ID: 0027
Revises: 0026
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_INDEX = "ix_log_chunks_attempt_id_rank_received_at_offset"


def upgrade() -> None:
    op.add_column("log_chunks", sa.Column("received_at", sa.BigInteger()))
    op.create_index(_INDEX, "log_chunks", ["attempt_id", "rank", "received_at", "offset"])


def downgrade() -> None:
    op.drop_index(_INDEX, "log_chunks")
    op.drop_column("log_chunks", "received_at")
