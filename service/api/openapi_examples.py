"""Examples for the OpenAPI document: by schema name, or by operation where the response has no schema of its own.

Examples of lists are built from the examples of their items.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_TIME, _LATER = "2026-01-01T12:00:00.000Z", "2026-01-01T12:05:00.000Z"
_JOB, _ATTEMPT = "job_01kdvdna00az9cxjnszk8v8abh", "0123456789abcdef"
_FOLDER = f"/shared/runs/{_JOB}/attempts/1-{_ATTEMPT}"
_DIGEST = "sha256:" + "0" * 64
_GIB = 2**30

_SPEC = {
    "name": "parity",
    "task": "regression",
    "gpus": 2,
    "model": {"source": "builtin", "name": "mlp"},
    "data": {"source": "builtin", "name": "parity"},
    "steps": 20,
    "batch": {"size": 10},
}
_TOKEN = {
    "object": "token",
    "id": _ATTEMPT,
    "name": "anna",
    "role": "user",
    "may_run_code": False,
    "created_by": "admin",
    "created_at": _TIME,
}
_SECRET = {"object": "secret", "name": "HF_TOKEN", "created_at": _TIME, "updated_at": _LATER}
_WEBHOOK = {
    "object": "webhook",
    "id": "whk_01kdvdna00az9cxjnszk8v8abh",
    "url": "https://example.org/hook",
    "statuses": ["succeeded", "failed"],
    "jobs": "own",
    "created_by": "anna",
    "created_at": _TIME,
    "failures": 0,
}
_MODEL_VERSION = {
    "object": "model_version",
    "model": "chat",
    "version": 2,
    "aliases": ["prod"],
    "job_id": _JOB,
    "job_name": "chat-lora",
    "task": "causal_lm",
    "step": 400,
    "digest": _DIGEST,
    "metrics": {"eval/loss": 0.25},
    "base": "/shared/models/llama-3.2-1b",
    "is_adapter": True,
    "data": {"source": "jsonl", "path": "/shared/data/chat.jsonl"},
    "created_by": "anna",
    "created_at": _TIME,
}
_MODEL = {
    "object": "model",
    "name": "chat",
    "description": "Answers questions about the cluster",
    "created_by": "anna",
    "created_at": _TIME,
    "updated_at": _LATER,
    "latest_version": 2,
    "aliases": {"prod": 2},
}
_METRICS = {
    "object": "metrics",
    "job_id": _JOB,
    "axis": "step",
    "series": [{"key": "train/loss", "steps": [10, 20], "values": [0.5, 0.25], "times": [_TIME, _LATER]}],
}
_PARTS = {"parameters": _GIB, "gradients": _GIB, "optimizer": 2 * _GIB, "activations": _GIB, "logits": _GIB}
_START_ESTIMATE = {
    "object": "start_estimate",
    "id": "est_01kdvdna00az9cxjnszk8v8abh",
    "state": "answered",
    "created_at": _TIME,
    "answered_at": _TIME,
    "accepted": True,
    "estimated_start": _LATER,
    "message": "Slurm would accept the job and estimates a start at 2026-01-01 12:05:00 UTC on node1 in partition gpu.",
}

_VIEW = {
    "object": "view",
    "id": "view_01kdvdna00az9cxjnszk8v8abh",
    "name": "Best baselines",
    "shared": True,
    "where": "tag = baseline and status = succeeded",
    "sort": "eval/loss",
    "columns": ["name", "optimizer.lr", "eval/loss"],
    "group": "optimizer.lr",
    "page": "",
    "created_by": "anna",
    "created_at": _TIME,
    "updated_at": _LATER,
}

EXAMPLES: Mapping[str, Any] = MappingProxyType(
    {
        "TrainingSpec": _SPEC,
        "AttemptResource": {
            "object": "attempt",
            "id": _ATTEMPT,
            "number": 1,
            "scheduler": "slurm",
            "scheduler_id": "4711",
            "nodes": ["node1"],
            "created_at": _TIME,
            "submitted_at": _TIME,
            "started_at": _LATER,
            "ended_at": _LATER,
            "execution": 1,
            "resumed_from_step": 0,
            "exit_reason": "node_failure",
            "scheduler_end": "Slurm: NODE_FAIL; node1 is down: Not responding",
            "failed_node": "node1",
        },
        "EventResource": {
            "object": "event",
            "id": "evt_7",
            "job_id": _JOB,
            "type": "status",
            "level": "info",
            "message": "runs on node1",
            "data": {"status": "running"},
            "created_at": _TIME,
        },
        "ScriptResource": {
            "object": "script",
            "job_id": _JOB,
            "attempt": 1,
            "script": "#!/bin/bash\n#SBATCH --nodes=1\n",
        },
        "MetricsResource": _METRICS,
        "ComparisonResource": {"object": "list", "data": [_METRICS]},
        "PointResource": {
            "object": "point",
            "id": "1.10.1",
            "key": "train/loss",
            "step": 10,
            "execution": 1,
            "value": 0.5,
            "time": _TIME,
        },
        "LogLines": {
            "object": "list",
            "data": [{"offset": 8192, "text": "WARNING: the learning rate is 0", "level": "warning"}],
            "attempt": 1,
            "has_more": False,
            "next_offset": 10240,
        },
        "LogPosition": {"object": "log_position", "attempt": 1, "rank": "0", "offset": 8192, "time": _TIME},
        "ArtifactResource": {
            "object": "artifact",
            "path": "trace/rank-0.json",
            "size_bytes": 481000,
            "modified_at": _TIME,
        },
        "JobLineage": {
            "object": "job_lineage",
            "job_id": _JOB,
            "ancestors": [
                {"job_id": "job_01kdvdna00az9cxjnszk8v8abg", "name": "base", "status": "succeeded", "step": 400}
            ],
            "data": [{"field": "data.name", "source": "builtin", "text": "digits"}],
            "versions": [{"model": "digits", "version": 3}],
        },
        "Template": {"object": "template", "name": "mlp_parity", "description": "A small net.", "spec": _SPEC},
        "ModelResource": _MODEL,
        "ModelDetail": {**_MODEL, "versions": [_MODEL_VERSION]},
        "ModelVersionResource": _MODEL_VERSION,
        "SecretResource": _SECRET,
        "SecretRequest": {"value": "..."},
        "UploadRequest": {"name": "chat.jsonl", "size_bytes": 481_000_000, "digest": _DIGEST},
        "ResolutionResource": {
            "object": "resolution",
            "job_id": _JOB,
            "resolved": True,
            "status": "queued",
            "message": "Queued to be resubmitted, as resolved by anna.",
        },
        "MaintenanceResource": {
            "object": "maintenance",
            "active": True,
            "since": _TIME,
            "started_by": "anna",
            "message": "Slurm is being upgraded",
        },
        "ClusterResource": {
            "object": "cluster",
            "backend": "slurm",
            "taken_at": _TIME,
            "age_seconds": 12.5,
            "partitions": [
                {
                    "name": "gpu",
                    "default": True,
                    "state": "up",
                    "time_limit_minutes": 1440,
                    "nodes": {"idle": 2},
                    "gpus": [{"type": "h100", "total": 8, "free": 5}],
                    "shapes": [{"nodes": 2, "gpus": {"h100": 4}}],
                }
            ],
            "nodes": {"idle": 2},
            "gpus": [{"type": "h100", "total": 8, "free": 5}],
        },
        "StartEstimateResource": _START_ESTIMATE,
        "DiagnosticsReport": {
            "object": "diagnostics",
            "findings": [
                {"name": "database", "state": "ok", "message": "answers"},
                {
                    "name": "disk",
                    "state": "error",
                    "message": "only 2.5 GiB are free for runs",
                    "fix": "delete jobs (trainyard usage shows whose), or move TRAINYARD_RUNS_DIR",
                },
            ],
        },
        "PlanResource": {
            "object": "plan",
            "spec": _SPEC,
            "model": {"parameters": 1_234_567, "trained": 1_234_567},
            "strategies": [
                {
                    "strategy": "ddp",
                    "micro_size": 4,
                    "peak_bytes": 6 * _GIB,
                    "state_bytes": 4 * _GIB,
                    "parts": _PARTS,
                    "peak_phase": "backward",
                    "fits": True,
                    "chosen": True,
                    "host_bytes": _GIB,
                }
            ],
            "strategy": "ddp",
            "strategy_reason": "set in the spec",
            "fits": True,
            "summary": "fits: needs about 6 GiB of 80 GiB per GPU",
            "accelerator": "cuda",
            "gpus": [{"type": "h100", "min_bytes": 80 * _GIB, "max_bytes": 80 * _GIB}],
            "disk": {"checkpoint_bytes": 12000, "checkpoints": 3, "export_bytes": 4000, "total_bytes": 40000},
            "script": "#!/bin/bash\n#SBATCH --nodes=1\n",
            "start_estimate": _START_ESTIMATE,
        },
        "TokenRequest": {"name": "anna", "role": "user", "expires_in_days": 90},
        "TokenResource": _TOKEN,
        "NewTokenResource": {**_TOKEN, "token": "ty_0123456789abcdef_secret"},
        "UnixUserResource": {"object": "unix_user", "name": "anna", "uid": 4711, "created_at": _TIME},
        "NonceResource": {
            "object": "sign_in_nonce",
            "nonce": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY",
            "expires_at": _LATER,
        },
        "SignInRequest": {"nonce": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY", "credential": "MUNGE:AwQFAACj:"},
        "AuditResource": {
            "object": "audit_entry",
            "id": "aud_12",
            "created_at": _TIME,
            "actor": "anna",
            "token_id": _ATTEMPT,
            "role": "user",
            "action": "cancel_job",
            "target": _JOB,
            "address": "192.0.2.7",
            "request_id": "req_01kdvdna00az9cxjnszk8v8abh",
            "outcome": "done",
        },
        "ViewResource": _VIEW,
        "WebhookRequest": {"url": "https://example.org/hook", "statuses": ["succeeded", "failed"]},
        "WebhookResource": _WEBHOOK,
        "NewWebhookResource": {**_WEBHOOK, "secret": "whsec_c2VjcmV0"},
        "DeliveryResource": {
            "object": "delivery",
            "id": "dlv_01kdvdna00az9cxjnszk8v8abh",
            "webhook_id": "whk_01kdvdna00az9cxjnszk8v8abh",
            "type": "job.status",
            "job_id": _JOB,
            "created_at": _TIME,
            "state": "delivered",
            "attempts": 1,
            "delivered_at": _TIME,
            "answer_status": 204,
        },
        "AccessResource": {
            "object": "job_access",
            "job_id": _JOB,
            "attempt": 1,
            "scheduler": "slurm",
            "scheduler_id": "4711",
            "account": "anna",
            "uid": 1000,
            "folder": _FOLDER,
            "command": ["python3", "-P", "-m", "worker.environment.companion", _FOLDER],
            "nodes": [{"name": "node1", "ranks": [0, 1]}],
        },
        "AccessRequest": {"kind": "exec", "program": "nvidia-smi"},
        "ProfileRequest": {"steps": 3, "ranks": [0]},
        "OrphanRequest": {"action": "adopt"},
        "ResolveRequest": {"action": "adopt", "scheduler_id": "4711"},
        "Claim": {"nonce": "0123456789abcdef", "host": "node1", "pid": 4242, "scheduler_id": "4711"},
        "ClaimGrant": {"execution": 1},
        "Heartbeat": {"execution": 1, "node": 0},
        "HeartbeatReply": {"stop": "pause", "profile": None},
        "EventsBatch": {
            "execution": 1,
            "events": [{"sequence": 1, "type": "note", "level": "info", "message": "warmed up", "time": _TIME}],
        },
        "CheckpointReport": {
            "execution": 1,
            "step": 200,
            "size_bytes": 481000,
            "digest": _DIGEST,
            "world_size": 2,
            "metrics": {"eval/loss": 0.25},
            "time": _TIME,
        },
        "ParametersReport": {
            "execution": 1,
            "parameters": {"optimizer.lr": 0.0003, "model": "resnet"},
            "tags": {"team": "nlp"},
            "notes": "a first try",
        },
        "FinishRecord": {"execution": 1, "reason": "completed", "step": 400, "time": _LATER},
    }
)

ANSWERS: Mapping[str, Any] = MappingProxyType(
    {
        "report_metrics": {"accepted": 2, "duplicates": 0},
        "report_events": {"accepted": 1},
        "report_checkpoint": {"accepted": 1},
        "report_parameters": {"accepted": 1},
        "append_log": {"next_offset": 4096},
        "finish_attempt": {"accepted": 1},
        "put_code": {"object": "code", "digest": _DIGEST},
        "livez": {"status": "ok"},
        "readyz": {"status": "ok", "checks": {"database": "ok", "runs_dir": "ok"}},
    }
)
"""Examples of responses by operation id."""

BODIES: Mapping[str, Any] = MappingProxyType(
    {
        "report_metrics": {
            "execution": 1,
            "resumed_from_step": 0,
            "points": [{"key": "train/loss", "step": 10, "value": 0.5, "time": _TIME}],
            "progress": {"step": 10, "total_steps": 400},
        }
    }
)
"""Examples of request bodies without a schema of their own, by operation id."""
