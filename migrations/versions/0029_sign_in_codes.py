"""sign-in codes

Revision ID: 0029
Revises: 0028
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sign_in_codes",
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("token_id", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_sign_in_codes")),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_sign_in_codes_token_id_tokens"), ondelete="CASCADE"
        ),
    )
    op.create_index(op.f("ix_sign_in_codes_expires_at"), "sign_in_codes", ["expires_at"])
    op.create_index(op.f("ix_sign_in_codes_token_id"), "sign_in_codes", ["token_id"])


def downgrade() -> None:
    op.drop_table("sign_in_codes")
