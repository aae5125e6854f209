"""which metrics a job has, its points thinned at write time, and the order of the stream of all jobs

Revision ID: 0006
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "job_keys",
        sa.Column("job_no", _BIG, nullable=False),
        sa.Column("key_no", _BIG, nullable=False),
        sa.ForeignKeyConstraint(["job_no"], ["jobs.no"], name=op.f("fk_job_keys_job_no"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["key_no"], ["metric_keys.no"], name=op.f("fk_job_keys_key_no")),
        sa.PrimaryKeyConstraint("job_no", "key_no", name=op.f("pk_job_keys")),
    )
    op.execute("INSERT INTO job_keys (job_no, key_no) SELECT DISTINCT job_no, key_no FROM points")
    op.create_table(
        "thinned_points",
        sa.Column("job_no", _BIG, nullable=False),
        sa.Column("key_no", _BIG, nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=False),
        sa.Column("step", _BIG, nullable=False),
        sa.Column("execution", _BIG, nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("special", sa.SmallInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_no"], ["jobs.no"], name=op.f("fk_thinned_points_job_no"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["key_no"], ["metric_keys.no"], name=op.f("fk_thinned_points_key_no")),
        sa.PrimaryKeyConstraint("job_no", "key_no", "level", "step", "execution", name=op.f("pk_thinned_points")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "thinnings",
        sa.Column("job_no", _BIG, nullable=False),
        sa.Column("sequence", _BIG, nullable=False),
        sa.Column("shift", sa.SmallInteger(), nullable=False),
        sa.Column("raw_deleted", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job_no"], ["jobs.no"], name=op.f("fk_thinnings_job_no"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_no", name=op.f("pk_thinnings")),
    )
    op.create_table(
        "feed",
        sa.Column("no", _BIG, autoincrement=False, nullable=False),
        sa.Column("job_no", _BIG, nullable=False),
        sa.Column("first", _BIG, nullable=False),
        sa.Column("last", _BIG, nullable=False),
        sa.ForeignKeyConstraint(["job_no"], ["jobs.no"], name=op.f("fk_feed_job_no"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("no", name=op.f("pk_feed")),
    )
    op.create_table(
        "feed_heads",
        sa.Column("id", _BIG, autoincrement=False, nullable=False),
        sa.Column("no", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feed_heads")),
    )
    op.create_table(
        "feed_marks",
        sa.Column("job_no", _BIG, nullable=False),
        sa.Column("sequence", _BIG, nullable=False),
        sa.ForeignKeyConstraint(["job_no"], ["jobs.no"], name=op.f("fk_feed_marks_job_no"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_no", name=op.f("pk_feed_marks")),
    )


def downgrade() -> None:
    for table in ("feed_marks", "feed_heads", "feed", "thinnings", "thinned_points", "job_keys"):
        op.drop_table(table)
