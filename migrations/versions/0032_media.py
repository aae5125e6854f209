"""media that programs logged

Revision ID: 0032
Revises: 0031
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "media",
        sa.Column("pk", _BIG, primary_key=True, autoincrement=True),
        sa.Column("job_pk", _BIG, sa.ForeignKey("jobs.pk", name="fk_media_job_pk", ondelete="CASCADE"), nullable=False),
        sa.Column("key", sa.String(250), nullable=False),
        sa.Column("step", _BIG, nullable=False),
        sa.Column("position", _BIG, nullable=False),
        sa.Column("execution", _BIG, nullable=False),
        sa.Column("type", sa.String(12), nullable=False),
        sa.Column("caption", sa.String(2000)),
        sa.Column("path", sa.String(1000)),
        sa.Column("histogram", _JSON),
        sa.Column("width", _BIG),
        sa.Column("height", _BIG),
        sa.Column("format", sa.String(20)),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint(
            "job_pk", "key", "step", "position", "execution", name="uq_media_job_pk_key_step_position_execution"
        ),
    )


def downgrade() -> None:
    op.drop_table("media")
