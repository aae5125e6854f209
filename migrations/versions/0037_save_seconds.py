"""how long the save of a checkpoint took

Revision ID: 0037
Revises: 0036
"""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("seconds", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("checkpoints", "seconds")
