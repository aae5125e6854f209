"""sign-in by an OpenID provider

Revision ID: 0040
Revises: 0039
"""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "oidc_users",
        sa.Column("issuer", sa.String(512), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("name_key", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("signed_in_at", sa.BigInteger(), nullable=True),
        sa.Column("disabled_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("issuer", "subject", name=op.f("pk_oidc_users")),
        sa.UniqueConstraint("name_key", name=op.f("uq_oidc_users_name_key")),
    )
    op.create_table(
        "oidc_requests",
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("browser", sa.String(64), nullable=False),
        sa.Column("nonce", sa.String(64), nullable=False),
        sa.Column("verifier", sa.String(128), nullable=False),
        sa.Column("target", sa.String(2000), nullable=False),
        sa.Column("session", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_oidc_requests")),
    )
    op.create_index(op.f("ix_oidc_requests_expires_at"), "oidc_requests", ["expires_at"])
    op.create_table(
        "oidc_tokens",
        sa.Column("token_id", sa.String(16), nullable=False),
        sa.Column("issuer", sa.String(512), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("id_token", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_oidc_tokens")),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_oidc_tokens_token_id_tokens"), ondelete="CASCADE"
        ),
    )
    op.create_index(op.f("ix_oidc_tokens_issuer_subject"), "oidc_tokens", ["issuer", "subject"])
    op.add_column("tokens", sa.Column("is_sign_in", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("sign_in_codes", sa.Column("for_program", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("sign_in_codes", "for_program")
    op.drop_column("tokens", "is_sign_in")
    op.drop_table("oidc_tokens")
    op.drop_table("oidc_requests")
    op.drop_table("oidc_users")
