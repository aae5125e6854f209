"""job accounts

Revision ID: 0020
Revises: 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("unix_uid", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("jobs", "unix_uid")
