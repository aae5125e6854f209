"""Examples of what the service answers, for its OpenAPI document."""

from pydantic.config import JsonDict

JOB: JsonDict = {
    "object": "job",
    "id": "job_01kdvdna00az9cxjnszk8v8abh",
    "name": "digits-ddp",
    "status": "running",
    "status_reason": None,
    "status_message": "runs on node1, node2",
    "desired": "run",
    "created_by": "anna",
    "created_at": "2026-01-01T12:00:00.000Z",
    "updated_at": "2026-01-01T12:05:00.000Z",
    "started_at": "2026-01-01T12:01:00.000Z",
    "progress": {"step": 120, "total_steps": 400, "seconds_per_step": 0.5, "eta_seconds": 140.0},
    "metrics": {"train/loss": 0.25},
    "last_checkpoint_step": 100,
    "metadata": {"team": "nlp"},
    "spec": {"task": "image_classification", "gpus": 2, "steps": 400},
    "run_directory": "/shared/runs/job_01kdvdna00az9cxjnszk8v8abh",
}
