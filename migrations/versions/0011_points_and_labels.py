"""points without foreign keys, labels found by job first, and job ids compared by their bytes

On SQLite both tables of points are written anew, a few seconds for a million points, and take their space once more
while that lasts.

Revision ID: 0011
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_LEVEL = {"points": False, "downsampled_points": True}


def upgrade() -> None:
    op.create_index(op.f("ix_job_labels_job_id_key_value"), "job_labels", ["job_id", "key", "value"])
    op.drop_index(op.f("ix_job_labels_job_id"), "job_labels")
    _compare_ids('"C"')
    for table in _LEVEL:
        if op.get_bind().dialect.name == "sqlite":
            _rebuild(table, keys=False)
        else:
            for column in ("job_pk", "key_pk"):
                op.drop_constraint(op.f(f"fk_{table}_{column}"), table, type_="foreignkey")


def downgrade() -> None:
    op.create_index(op.f("ix_job_labels_job_id"), "job_labels", ["job_id"])
    op.drop_index(op.f("ix_job_labels_job_id_key_value"), "job_labels")
    _compare_ids('"default"')
    for table in _LEVEL:
        if op.get_bind().dialect.name == "sqlite":
            _rebuild(table, keys=True)
        else:
            job, key = op.f(f"fk_{table}_job_pk"), op.f(f"fk_{table}_key_pk")
            op.create_foreign_key(job, table, "jobs", ["job_pk"], ["pk"], ondelete="CASCADE")
            op.create_foreign_key(key, table, "metric_keys", ["key_pk"], ["pk"])


def _compare_ids(collation: str) -> None:
    """SQLite compares bytes anyway."""
    if op.get_bind().dialect.name == "postgresql":
        for table, column in (("job_labels", "job_id"), ("jobs", "id")):
            op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE VARCHAR(40) COLLATE {collation}")


def _rebuild(table: str, *, keys: bool) -> None:
    """SQLite cannot alter a table's constraints."""
    columns = _columns(table)
    names = ", ".join(column.name for column in columns)
    op.create_table(f"{table}_anew", *columns, *_constraints(table, keys=keys), sqlite_with_rowid=False)
    op.execute(f"INSERT INTO {table}_anew ({names}) SELECT {names} FROM {table}")  # noqa: S608 (names of ours)
    op.drop_table(table)
    op.rename_table(f"{table}_anew", table)
    if table == "points":
        op.create_index(op.f("ix_points_job_pk_sequence"), table, ["job_pk", "sequence"])


def _columns(table: str) -> list[sa.Column[object]]:
    level = [sa.Column("level", sa.SmallInteger(), nullable=False)] if _LEVEL[table] else []
    sequence = [] if _LEVEL[table] else [sa.Column("sequence", _BIG, nullable=False)]
    return [
        sa.Column("job_pk", _BIG, nullable=False),
        sa.Column("key_pk", _BIG, nullable=False),
        *level,
        sa.Column("step", _BIG, nullable=False),
        sa.Column("execution", _BIG, nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("special", sa.SmallInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        *sequence,
    ]


def _constraints(table: str, *, keys: bool) -> list[sa.Constraint]:
    level = ["level"] if _LEVEL[table] else []
    constraints: list[sa.Constraint] = [
        sa.PrimaryKeyConstraint("job_pk", "key_pk", *level, "step", "execution", name=op.f(f"pk_{table}"))
    ]
    if keys:
        job, key = op.f(f"fk_{table}_job_pk"), op.f(f"fk_{table}_key_pk")
        constraints.append(sa.ForeignKeyConstraint(["job_pk"], ["jobs.pk"], name=job, ondelete="CASCADE"))
        constraints.append(sa.ForeignKeyConstraint(["key_pk"], ["metric_keys.pk"], name=key))
    return constraints
