"""orphans by user

Revision ID: 0017
Revises: 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("orphans", sa.Column("created_by", sa.String(128)))
    op.add_column("orphans", sa.Column("owner", sa.String(128)))


def downgrade() -> None:
    op.drop_column("orphans", "owner")
    op.drop_column("orphans", "created_by")
