"""the conditions of jobs, which were recognised by their messages

Revision ID: 0034
Revises: 0033
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")
_PREFIXES = {
    "Waiting for the end of maintenance mode": "maintenance",
    "Requeued in Slurm": "requeued",
    "Suspended in Slurm": "suspended",
    "Running, but the worker has sent nothing since": "silent",
    "Running: heartbeats arrive, although": "not_in_queue",
    "Cancellation requested. Waiting for the scheduler": "cancel_pending",
    "submission has taken more than a minute": "slow_submit",
}
"""How the messages began by which the service of the last revision decided. The next tick adds the data."""


def upgrade() -> None:
    op.add_column("jobs", sa.Column("condition", sa.String(32)))
    op.add_column("jobs", sa.Column("condition_data", _JSON))
    names = ("condition", "status", "status_message")
    jobs = sa.table("jobs", *(sa.column(name, sa.String) for name in names))
    unfinished = jobs.c.status.not_in(("succeeded", "failed", "cancelled"))
    for prefix, condition in _PREFIXES.items():
        matches = jobs.c.status_message.startswith(prefix, autoescape=True)
        op.execute(sa.update(jobs).where(unfinished, matches).values(condition=condition))


def downgrade() -> None:
    op.drop_column("jobs", "condition_data")
    op.drop_column("jobs", "condition")
