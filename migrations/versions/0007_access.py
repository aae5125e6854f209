"""audit, webhooks with their deliveries, more about tokens, and what limits of a person need to know of a job

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("pk", _BIG, autoincrement=True, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(128), nullable=False),
        sa.Column("token_id", sa.String(32), nullable=True),
        sa.Column("role", sa.String(16), nullable=True),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("target", sa.String(256), nullable=True),
        sa.Column("address", sa.String(64), nullable=True),
        sa.Column("request_id", sa.String(64), nullable=True),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("status", _BIG, nullable=True),
        sa.Column("detail", _JSON, nullable=False),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_created_at"), "audit", ["created_at"])
    op.create_index(op.f("ix_audit_actor_pk"), "audit", ["actor", "pk"])
    op.create_index(op.f("ix_audit_action_pk"), "audit", ["action", "pk"])
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.String(128), nullable=False),
        sa.Column("statuses", _JSON, nullable=False),
        sa.Column("jobs", sa.String(8), nullable=False),
        sa.Column("created_by", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("disabled_at", sa.BigInteger(), nullable=True),
        sa.Column("failures", _BIG, nullable=False),
        sa.Column("failing_since", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index(op.f("ix_webhooks_created_by"), "webhooks", ["created_by"])
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("webhook_id", sa.String(40), nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("job_id", sa.String(40), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("attempts", _BIG, nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=True),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.Column("answer_status", _BIG, nullable=True),
        sa.Column("error", sa.String(256), nullable=True),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_deliveries_webhook_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    op.create_index(op.f("ix_deliveries_next_at"), "deliveries", ["next_at"])
    op.create_index(op.f("ix_deliveries_webhook_id_id"), "deliveries", ["webhook_id", "id"])
    op.add_column("tokens", sa.Column("created_by", sa.String(128), nullable=True))
    op.add_column("tokens", sa.Column("last_used_at", sa.BigInteger(), nullable=True))
    op.add_column("tokens", sa.Column("may_run_code", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("gpus", _BIG, nullable=False, server_default="1"))
    op.add_column("jobs", sa.Column("submitter_role", sa.String(16), nullable=False, server_default="user"))
    number = "json_extract(spec, '$.gpus')" if op.get_bind().dialect.name == "sqlite" else "(spec->>'gpus')::bigint"
    op.execute(f"UPDATE jobs SET gpus = coalesce({number}, 1)")  # noqa: S608 (one of two constants)
    op.create_index(op.f("ix_jobs_created_by_status"), "jobs", ["created_by", "status"])


def downgrade() -> None:
    op.drop_index(op.f("ix_jobs_created_by_status"), "jobs")
    for table, columns in (
        ("jobs", ("submitter_role", "gpus")),
        ("tokens", ("may_run_code", "last_used_at", "created_by")),
    ):
        with op.batch_alter_table(table) as batch:
            for column in columns:
                batch.drop_column(column)
    for table in ("deliveries", "webhooks", "audit"):
        op.drop_table(table)
