"""job parameters

Revision ID: 0021
Revises: 0020
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")
_PUBLIC_ID = sa.String(40).with_variant(sa.String(40, collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("parameters", _JSON))
    op.create_table(
        "job_parameters",
        sa.Column("key", sa.String(250), primary_key=True),
        sa.Column("value", sa.String(200), primary_key=True),
        sa.Column(
            "job_id",
            _PUBLIC_ID,
            sa.ForeignKey("jobs.id", name="fk_job_parameters_job_id", ondelete="CASCADE"),
            primary_key=True,
        ),
    )
    op.create_index("ix_job_parameters_job_id_key_value", "job_parameters", ["job_id", "key", "value"])


def downgrade() -> None:
    op.drop_table("job_parameters")
    op.drop_column("jobs", "parameters")
