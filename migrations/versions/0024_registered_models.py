"""registered models

Revision ID: 0024
Revises: 0023
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")
_PUBLIC_ID = sa.String(40).with_variant(sa.String(40, collation="C"), "postgresql")
_NAME = sa.String(100).with_variant(sa.String(100, collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "registered_models",
        sa.Column("name", _NAME, primary_key=True),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("last_version", _NUMBER, nullable=False),
        sa.Column("aliases", _JSON, nullable=False),
    )
    op.create_index("ix_registered_models_created_by", "registered_models", ["created_by"])
    op.create_table(
        "model_versions",
        sa.Column(
            "model",
            _NAME,
            sa.ForeignKey("registered_models.name", name="fk_model_versions_model", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("number", _NUMBER, primary_key=True),
        sa.Column("job_id", _PUBLIC_ID, sa.ForeignKey("jobs.id", name="fk_model_versions_job_id"), nullable=False),
        sa.Column("checkpoint_id", sa.String(40)),
        sa.Column("step", _NUMBER),
        sa.Column("digest", sa.String(80), nullable=False),
        sa.Column("metrics", _JSON, nullable=False),
        sa.Column("lineage", _JSON, nullable=False),
        sa.Column("created_by", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_model_versions_job_id", "model_versions", ["job_id"])


def downgrade() -> None:
    op.drop_table("model_versions")
    op.drop_table("registered_models")
