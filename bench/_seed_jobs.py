"""Inserts jobs with an attempt and a valid attempt token, without a scheduler."""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from service.auth.tokens import hash_token, new_worker_token
from service.core.ids import new_attempt_id, new_job_id
from service.db.engine import Database
from service.db.models import Attempt, Job


@dataclass(frozen=True)
class SeededJob:
    """A job and its attempt token."""

    pk: int
    id: str
    attempt_id: str
    token: str

    @property
    def metrics_path(self) -> str:
        return f"/v1/attempts/{self.attempt_id}/metrics"


def seed_jobs(database: Database, count: int, *, status: str = "paused") -> list[SeededJob]:
    """Insert jobs that can receive reports; they are paused, so that the reconciler does not change them."""
    now = datetime.now(UTC)
    jobs = []
    for index in range(count):
        attempt_id = new_attempt_id()
        token = new_worker_token(attempt_id)
        job_id = new_job_id(now)
        with database.write() as session:
            job = Job(
                id=job_id, name=f"bench-{index}", status=status, status_message="", desired="paused", spec={},
                labels={}, created_by="bench", created_at=now, updated_at=now, attempts=1, attempt_id=attempt_id,
                latest={},
            )  # fmt: skip
            session.add(job)
            session.flush()
            session.add(
                Attempt(
                    id=attempt_id, job_pk=job.pk, number=1, tag=f"ty-bench-{secrets.token_hex(8)}", scheduler="local",
                    token_hash=hash_token(token), execution=1, max_restarts=0, created_at=now,
                )
            )  # fmt: skip
            jobs.append(SeededJob(job.pk, job_id, attempt_id, token))
    return jobs
