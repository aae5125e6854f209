"""ends of attempts

Revision ID: 0018
Revises: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("scheduler_end", sa.Text()))


def downgrade() -> None:
    op.drop_column("attempts", "scheduler_end")
