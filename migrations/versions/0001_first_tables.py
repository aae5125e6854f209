"""first tables

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("principal", sa.String(length=128), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("response", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("principal", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_table(
        "jobs",
        sa.Column("pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=120), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("status_reason", sa.String(length=32), nullable=True),
        sa.Column("status_message", sa.Text(), nullable=False),
        sa.Column("desired", sa.String(length=16), nullable=False),
        sa.Column("spec", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("labels", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("created_by", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("attempts", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("next_execution", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("retries_used", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "continuations_without_progress", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("last_checkpoint_step", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("progress", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.Column("latest", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("failure", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.Column("attempt_id", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id", name=op.f("uq_jobs_id")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_created_by"), ["created_by"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_name"), ["name"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_status"), ["status"], unique=False)

    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("term", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "metric_keys",
        sa.Column("pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("name", sa.String(length=250), nullable=False),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_metric_keys")),
        sa.UniqueConstraint("name", name=op.f("uq_metric_keys_name")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("job_pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("tag", sa.String(length=64), nullable=False),
        sa.Column("scheduler", sa.String(length=16), nullable=False),
        sa.Column("scheduler_id", sa.String(length=64), nullable=True),
        sa.Column("script", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("execution", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("max_restarts", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=True),
        sa.Column("absence_checks", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("claim_nonce", sa.String(length=64), nullable=True),
        sa.Column("claimed_at", sa.BigInteger(), nullable=True),
        sa.Column("nodes", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("heartbeat_at", sa.BigInteger(), nullable=True),
        sa.Column("reported_execution", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("resumed_from_step", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("checkpoint_step", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("finish", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("exit_reason", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=op.f("fk_attempts_job_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("job_pk", "number", name=op.f("uq_attempts_job_pk_number")),
        sa.UniqueConstraint("tag", name=op.f("uq_attempts_tag")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("execution", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("size_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.String(length=80), nullable=False),
        sa.Column("world_size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("metrics", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=op.f("fk_checkpoints_job_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("job_pk", "step", name=op.f("uq_checkpoints_job_pk_step")),
    )
    with op.batch_alter_table("checkpoints", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_checkpoints_job_pk_sequence"), ["job_pk", "sequence"], unique=False)

    op.create_table(
        "events",
        sa.Column("pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("level", sa.String(length=8), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("execution", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("worker_sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=op.f("fk_events_job_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_events")),
        sa.UniqueConstraint(
            "job_pk", "execution", "worker_sequence", name=op.f("uq_events_job_pk_execution_worker_sequence")
        ),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_events_job_pk_sequence"), ["job_pk", "sequence"], unique=False)

    op.create_table(
        "executions",
        sa.Column("job_pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("attempt_id", sa.String(length=32), nullable=False),
        sa.Column("resumed_from_step", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=op.f("fk_executions_job_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_pk", "number", name=op.f("pk_executions")),
    )
    op.create_table(
        "points",
        sa.Column("job_pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("key_pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("execution", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("special", sa.SmallInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=op.f("fk_points_job_pk"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["key_pk"], ["metric_keys.pk"], name=op.f("fk_points_key_pk")),
        sa.PrimaryKeyConstraint("job_pk", "key_pk", "step", "execution", name=op.f("pk_points")),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("points", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_points_job_pk_sequence"), ["job_pk", "sequence"], unique=False)

    op.create_table(
        "log_chunks",
        sa.Column("pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("attempt_id", sa.String(length=32), nullable=False),
        sa.Column("rank", sa.String(length=16), nullable=False),
        sa.Column("offset", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_log_chunks_attempt_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=op.f("fk_log_chunks_job_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_log_chunks")),
        sa.UniqueConstraint("attempt_id", "rank", "offset", name=op.f("uq_log_chunks_attempt_id_rank_offset")),
    )
    with op.batch_alter_table("log_chunks", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_log_chunks_job_pk_sequence"), ["job_pk", "sequence"], unique=False)

    op.create_table(
        "log_streams",
        sa.Column("attempt_id", sa.String(length=32), nullable=False),
        sa.Column("rank", sa.String(length=16), nullable=False),
        sa.Column("size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_log_streams_attempt_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("attempt_id", "rank", name=op.f("pk_log_streams")),
    )


def downgrade() -> None:
    op.drop_table("log_streams")
    with op.batch_alter_table("log_chunks", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_log_chunks_job_pk_sequence"))

    op.drop_table("log_chunks")
    with op.batch_alter_table("points", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_points_job_pk_sequence"))

    op.drop_table("points")
    op.drop_table("executions")
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_events_job_pk_sequence"))

    op.drop_table("events")
    with op.batch_alter_table("checkpoints", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_checkpoints_job_pk_sequence"))

    op.drop_table("checkpoints")
    op.drop_table("attempts")
    op.drop_table("tokens")
    op.drop_table("metric_keys")
    op.drop_table("leases")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_jobs_status"))
        batch_op.drop_index(batch_op.f("ix_jobs_name"))
        batch_op.drop_index(batch_op.f("ix_jobs_created_by"))

    op.drop_table("jobs")
    op.drop_table("idempotency_keys")
