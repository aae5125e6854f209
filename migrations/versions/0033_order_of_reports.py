"""the order in which programs logged media and the latest values of metrics

Revision ID: 0033
Revises: 0032
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")
_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("media", sa.Column("spool_position", _BIG))
    op.add_column("jobs", sa.Column("latest_points", _JSON))


def downgrade() -> None:
    op.drop_column("jobs", "latest_points")
    op.drop_column("media", "spool_position")
