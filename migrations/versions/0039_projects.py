"""projects of jobs

Revision ID: 0039
Revises: 0038
"""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("project", sa.String(120), nullable=True))
    op.create_index("ix_jobs_project_id", "jobs", ["project", "id"])


def downgrade() -> None:
    op.drop_index("ix_jobs_project_id", "jobs")
    op.drop_column("jobs", "project")
