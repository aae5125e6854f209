"""remove the values of fields that the task of a job ignores

The runs table found them by the defaults of the spec. They are not added again by a downgrade.

Revision ID: 0030
Revises: 0029
"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_OF_TRAINING = (
    *("strategy", "precision", "param_dtype", "grad_dtype", "lora_rank", "model", "data", "steps", "epochs", "batch"),
    *("objective", "preference", "loss", "embedding", "optimizer", "ema", "schedule", "fsdp", "ddp", "lora"),
    *("trainable", "activation_checkpointing", "compile", "evaluation", "early_stopping", "checkpoint", "resume_from"),
    *("resume", "amp", "tf32", "profile", "log", "seed"),
)
_IGNORED = {
    "script": (*_OF_TRAINING, "backend", "health.on_nan"),
    "comm_check": (*_OF_TRAINING, "health"),
}
_KEYS = sa.table("value_keys", sa.column("pk"), sa.column("kind"), sa.column("name", sa.String()))
_VALUES = sa.table("job_values", sa.column("job_pk"), sa.column("key_pk"), sa.column("text", sa.String()))


def upgrade() -> None:
    for task, paths in _IGNORED.items():
        key_of_task = sa.select(_KEYS.c.pk).where(_KEYS.c.kind == "spec", _KEYS.c.name == "task")
        of_task = _VALUES.alias()
        jobs = sa.select(of_task.c.job_pk).where(of_task.c.key_pk.in_(key_of_task), of_task.c.text == task)
        below = (_KEYS.c.name.startswith(f"{path}.", autoescape=True) for path in paths)
        keys = sa.select(_KEYS.c.pk).where(_KEYS.c.kind == "spec", sa.or_(_KEYS.c.name.in_(paths), *below))
        op.execute(sa.delete(_VALUES).where(_VALUES.c.job_pk.in_(jobs), _VALUES.c.key_pk.in_(keys)))


def downgrade() -> None:
    pass
