"""searches of sweeps: their state and trials, and the step at which a job pauses by itself

Revision ID: 0026
Revises: 0025
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_JSON = sa.JSON().with_variant(JSONB(), "postgresql")
_PUBLIC_ID = sa.String(40).with_variant(sa.String(40, collation="C"), "postgresql")
_COLUMNS = ("spec", "search", "state", "message", "importance", "submitter_role", "may_run_code", "force")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("pause_at_step", _BIG))
    op.add_column("sweeps", sa.Column("spec", _JSON))
    op.add_column("sweeps", sa.Column("search", _JSON))
    op.add_column("sweeps", sa.Column("state", sa.String(16)))
    op.add_column("sweeps", sa.Column("message", sa.Text(), nullable=False, server_default=""))
    op.add_column("sweeps", sa.Column("importance", _JSON))
    op.add_column("sweeps", sa.Column("submitter_role", sa.String(16), nullable=False, server_default="user"))
    op.add_column("sweeps", sa.Column("may_run_code", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("sweeps", sa.Column("force", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index("ix_sweeps_state", "sweeps", ["state"])
    op.create_table(
        "sweep_trials",
        sa.Column(
            "sweep_id",
            sa.String(40),
            sa.ForeignKey("sweeps.id", name="fk_sweep_trials_sweep_id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("number", _BIG, primary_key=True),
        sa.Column("job_id", _PUBLIC_ID),
        sa.Column("values", _JSON, nullable=False),
        sa.Column("bracket", _BIG, nullable=False),
        sa.Column("results", _JSON, nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("job_id", name="uq_sweep_trials_job_id"),
    )


def downgrade() -> None:
    op.drop_table("sweep_trials")
    op.drop_index("ix_sweeps_state", "sweeps")
    for column in reversed(_COLUMNS):
        op.drop_column("sweeps", column)
    op.drop_column("jobs", "pause_at_step")
