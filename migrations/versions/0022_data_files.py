"""data files

Revision ID: 0022
Revises: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_ID = sa.String(40).with_variant(sa.String(40, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "data_files",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("format", sa.String(32), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("examples", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(80), nullable=False),
        sa.Column("created_by", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_data_files")),
    )
    op.create_index(op.f("ix_data_files_created_by_id"), "data_files", ["created_by", "id"])
    op.create_index(op.f("ix_data_files_digest"), "data_files", ["digest"])
    op.create_table(
        "uploads",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("format", sa.String(32)),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(80)),
        sa.Column("created_by", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("file_id", _ID),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    op.create_index(op.f("ix_uploads_created_by"), "uploads", ["created_by"])
    op.create_index(op.f("ix_uploads_updated_at"), "uploads", ["updated_at"])


def downgrade() -> None:
    op.drop_table("uploads")
    op.drop_table("data_files")
