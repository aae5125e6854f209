"""unix users

Revision ID: 0019
Revises: 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("unix_uid", sa.BigInteger()))
    op.create_table(
        "unix_users",
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_unix_users")),
        sa.UniqueConstraint("uid", name=op.f("uq_unix_users_uid")),
    )
    op.create_table(
        "sign_in_nonces",
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("network", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_sign_in_nonces")),
    )
    op.create_index(op.f("ix_sign_in_nonces_expires_at"), "sign_in_nonces", ["expires_at"])


def downgrade() -> None:
    op.drop_table("sign_in_nonces")
    op.drop_table("unix_users")
    op.drop_column("tokens", "unix_uid")
