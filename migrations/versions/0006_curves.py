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
        sa.Column("job_pk", _BIG, nullable=False),
        sa.Column("key_pk", _BIG, nullable=False),
        sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=op.f("fk_job_keys_job_pk"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["key_pk"], ["metric_keys.pk"], name=op.f("fk_job_keys_key_pk")),
        sa.PrimaryKeyConstraint("job_pk", "key_pk", name=op.f("pk_job_keys")),
    )
    op.execute("INSERT INTO job_keys (job_pk, key_pk) SELECT DISTINCT job_pk, key_pk FROM points")
    op.create_table(
        "downsampled_points",
        sa.Column("job_pk", _BIG, nullable=False),
        sa.Column("key_pk", _BIG, nullable=False),
        sa.Column("level", sa.SmallInteger(), nullable=False),
        sa.Column("step", _BIG, nullable=False),
        sa.Column("execution", _BIG, nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("special", sa.SmallInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=op.f("fk_downsampled_points_job_pk"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["key_pk"], ["metric_keys.pk"], name=op.f("fk_downsampled_points_key_pk")),
        sa.PrimaryKeyConstraint("job_pk", "key_pk", "level", "step", "execution", name=op.f("pk_downsampled_points")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "downsample_states",
        sa.Column("job_pk", _BIG, nullable=False),
        sa.Column("sequence", _BIG, nullable=False),
        sa.Column("spacing_bits", sa.SmallInteger(), nullable=False),
        sa.Column("raw_deleted", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=op.f("fk_downsample_states_job_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_pk", name=op.f("pk_downsample_states")),
    )
    op.create_table(
        "feed",
        sa.Column("position", _BIG, autoincrement=False, nullable=False),
        sa.Column("job_pk", _BIG, nullable=False),
        sa.Column("first", _BIG, nullable=False),
        sa.Column("last", _BIG, nullable=False),
        sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=op.f("fk_feed_job_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_feed")),
    )
    op.create_table(
        "feed_sequences",
        sa.Column("id", _BIG, autoincrement=False, nullable=False),
        sa.Column("position", _BIG, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feed_sequences")),
    )
    op.create_table(
        "feed_cursors",
        sa.Column("job_pk", _BIG, nullable=False),
        sa.Column("sequence", _BIG, nullable=False),
        sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=op.f("fk_feed_cursors_job_pk"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_pk", name=op.f("pk_feed_cursors")),
    )


def downgrade() -> None:
    for table in ("feed_cursors", "feed_sequences", "feed", "downsample_states", "downsampled_points", "job_keys"):
        op.drop_table(table)
