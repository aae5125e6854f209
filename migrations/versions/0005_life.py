"""steering, forks, deletion and disk use of jobs, and the indexes of their lists

Revision ID: 0005
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0003"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FILTERS = ("status", "name", "created_by")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("first_execution", INTEGER, server_default="1", nullable=False))
    op.add_column("jobs", sa.Column("pause_requested_at", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("origin", JSON, nullable=True))
    op.add_column("jobs", sa.Column("disk_bytes", INTEGER, nullable=True))
    op.add_column("jobs", sa.Column("measured_at", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("deletion_requested_at", sa.BigInteger(), nullable=True))
    op.add_column("checkpoints", sa.Column("removing", sa.Boolean(), server_default=sa.false(), nullable=False))
    for column in FILTERS:
        op.drop_index(op.f(f"ix_jobs_{column}"), table_name="jobs")
        op.create_index(op.f(f"ix_jobs_{column}_id"), "jobs", [column, "id"])
    op.create_index(op.f("ix_jobs_created_by_disk_bytes"), "jobs", ["created_by", "disk_bytes"])
    op.create_index(op.f("ix_jobs_measured_at"), "jobs", ["measured_at"])
    requested = sa.text("deletion_requested_at IS NOT NULL")
    op.create_index(
        op.f("ix_jobs_deletion_requested_at"),
        "jobs",
        ["deletion_requested_at"],
        sqlite_where=requested,
        postgresql_where=requested,
    )
    op.create_index(op.f("ix_checkpoints_removing"), "checkpoints", ["removing"])
    op.create_table(
        "job_labels",
        sa.Column("key", sa.String(length=512), nullable=False),
        sa.Column("value", sa.String(length=512), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_labels_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key", "value", "job_id", name=op.f("pk_job_labels")),
    )
    op.create_index(op.f("ix_job_labels_job_id"), "job_labels", ["job_id"])
    each = "jsonb_each_text" if op.get_bind().dialect.name == "postgresql" else "json_each"
    op.execute(
        f"INSERT INTO job_labels (key, value, job_id) SELECT label.key, label.value, jobs.id "  # noqa: S608
        f"FROM jobs, {each}(jobs.labels) AS label"
    )


def downgrade() -> None:
    op.drop_table("job_labels")
    op.drop_index(op.f("ix_checkpoints_removing"), table_name="checkpoints")
    for columns in ("created_by_disk_bytes", "measured_at", "deletion_requested_at"):
        op.drop_index(op.f(f"ix_jobs_{columns}"), table_name="jobs")
    for column in FILTERS:
        op.drop_index(op.f(f"ix_jobs_{column}_id"), table_name="jobs")
        op.create_index(op.f(f"ix_jobs_{column}"), "jobs", [column])
    op.drop_column("checkpoints", "removing")
    for column in (
        "deletion_requested_at",
        "measured_at",
        "disk_bytes",
        "origin",
        "pause_requested_at",
        "first_execution",
    ):
        op.drop_column("jobs", column)
