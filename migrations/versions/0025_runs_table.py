"""values by which jobs are filtered and sorted, archived jobs and saved views

Values of existing jobs are added by `service.metrics.summaries`, in the background.

Revision ID: 0025
Revises: 0024
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")
_PUBLIC_ID = sa.String(40).with_variant(sa.String(40, collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TEXT = sa.String(200).with_variant(sa.String(200, collation="C"), "postgresql")
_TIMES = ("started_at", "finished_at", "runtime")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("archived_at", sa.BigInteger()))
    # Postgres computes the column when a row is written; SQLite can only add one that is computed when it is read.
    persisted = True if op.get_bind().dialect.name == "postgresql" else None
    op.add_column("jobs", sa.Column("runtime", _NUMBER, sa.Computed("finished_at - started_at", persisted=persisted)))
    for column in _TIMES:
        op.create_index(f"ix_jobs_{column}_id", "jobs", [column, "id"])
    is_archived = sa.text("archived_at IS NOT NULL")
    op.create_index(
        "ix_jobs_archived_at", "jobs", ["archived_at"], sqlite_where=is_archived, postgresql_where=is_archived
    )
    op.create_table(
        "value_keys",
        sa.Column("pk", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("kind", sa.String(12), nullable=False),
        sa.Column("name", sa.String(512), nullable=False),
        sa.UniqueConstraint("kind", "name", name="uq_value_keys_kind_name"),
    )
    op.create_table(
        "job_values",
        _job_pk("job_values"),
        sa.Column("key_pk", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Double()),
        sa.Column("text", _TEXT),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_job_values_key_pk_number_job_pk", "job_values", ["key_pk", "number", "job_pk"])
    op.create_index(
        "ix_job_values_key_pk_text_job_pk",
        "job_values",
        ["key_pk", "text", "job_pk"],
        sqlite_where=sa.text("text IS NOT NULL"),
        postgresql_where=sa.text("text IS NOT NULL"),
    )
    op.create_table(
        "value_states",
        _job_pk("value_states"),
        sa.Column("sequence", _NUMBER, nullable=False),
        sa.Column("executions", _JSON, nullable=False),
    )
    op.create_table(
        "saved_views",
        sa.Column("id", _PUBLIC_ID, primary_key=True),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("created_by", sa.String(128), nullable=False),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("state", _JSON, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("created_by", "name", name="uq_saved_views_created_by_name"),
    )
    op.create_index("ix_saved_views_shared_id", "saved_views", ["shared", "id"])


def _job_pk(table: str) -> sa.Column[int]:
    key = sa.ForeignKey("jobs.pk", name=f"fk_{table}_job_pk", ondelete="CASCADE")
    return sa.Column("job_pk", _NUMBER, key, primary_key=True, autoincrement=False)


def downgrade() -> None:
    for table in ("saved_views", "value_states", "job_values", "value_keys"):
        op.drop_table(table)
    for column in _TIMES:
        op.drop_index(f"ix_jobs_{column}_id", "jobs")
    op.drop_index("ix_jobs_archived_at", "jobs")
    op.drop_column("jobs", "runtime")
    op.drop_column("jobs", "archived_at")
