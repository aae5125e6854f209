"""created projects with members, and what belongs to one

Revision ID: 0041
Revises: 0040
"""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "projects",
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("key", sa.String(400), nullable=False),
        sa.Column("description", sa.Text(), nullable=False, server_default=""),
        sa.Column("is_private", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("created_by", sa.String(128), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("max_gpus", sa.Integer(), nullable=True),
        sa.Column("max_queued", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
        sa.UniqueConstraint("key", name=op.f("uq_projects_key")),
    )
    op.create_table(
        "project_members",
        sa.Column("project", sa.String(120), nullable=False),
        sa.Column("member", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("project", "member", name=op.f("pk_project_members")),
        sa.ForeignKeyConstraint(
            ["project"], ["projects.name"], name=op.f("fk_project_members_project_projects"), ondelete="CASCADE"
        ),
    )
    op.create_index(op.f("ix_project_members_member"), "project_members", ["member"])
    op.add_column("tokens", sa.Column("project", sa.String(120), nullable=True))
    op.add_column("saved_views", sa.Column("project", sa.String(120), nullable=True))
    op.add_column("sweeps", sa.Column("project", sa.String(120), nullable=True))
    op.execute(
        "UPDATE sweeps SET project = (SELECT max(project) FROM jobs WHERE jobs.sweep_id = sweeps.id AND project <> '')"
    )


def downgrade() -> None:
    op.drop_column("sweeps", "project")
    op.drop_column("saved_views", "project")
    op.drop_column("tokens", "project")
    op.drop_table("project_members")
    op.drop_table("projects")
