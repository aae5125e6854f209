"""The tables, a module for each feature."""

from service.db.models.auth import AuditEntry, SignInCode, SignInNonce, Token, UnixUser, WebSession
from service.db.models.base import Base
from service.db.models.cluster import Cluster, Lease, MaintenanceMode, NodeFault, Orphan, StartEstimate
from service.db.models.files import DataFile, Upload
from service.db.models.fine_tunes import FineTune
from service.db.models.jobs import (
    Attempt,
    Checkpoint,
    Event,
    Execution,
    IdempotencyKey,
    Job,
    JobDependency,
    JobLabel,
    JobParameter,
)
from service.db.models.media import Media
from service.db.models.metrics import CurveRevision, DownsampledPoint, DownsampleState, JobKey, MetricKey, Point
from service.db.models.oidc import OidcRequest, OidcToken, OidcUser
from service.db.models.projects import Project, ProjectMember
from service.db.models.registry import ModelVersion, RegisteredModel
from service.db.models.secrets import Secret
from service.db.models.streaming import FeedCursor, FeedEntry, FeedSequence, LogChunk, LogStream
from service.db.models.sweeps import Sweep, SweepTrial
from service.db.models.table import JobValue, SavedView, ValueKey, ValueState
from service.db.models.webhooks import Delivery, Webhook

__all__ = [
    "Attempt",
    "AuditEntry",
    "Base",
    "Checkpoint",
    "Cluster",
    "CurveRevision",
    "DataFile",
    "Delivery",
    "DownsampleState",
    "DownsampledPoint",
    "Event",
    "Execution",
    "FeedCursor",
    "FeedEntry",
    "FeedSequence",
    "FineTune",
    "IdempotencyKey",
    "Job",
    "JobDependency",
    "JobKey",
    "JobLabel",
    "JobParameter",
    "JobValue",
    "Lease",
    "LogChunk",
    "LogStream",
    "MaintenanceMode",
    "Media",
    "MetricKey",
    "ModelVersion",
    "NodeFault",
    "OidcRequest",
    "OidcToken",
    "OidcUser",
    "Orphan",
    "Point",
    "Project",
    "ProjectMember",
    "RegisteredModel",
    "SavedView",
    "Secret",
    "SignInCode",
    "SignInNonce",
    "StartEstimate",
    "Sweep",
    "SweepTrial",
    "Token",
    "UnixUser",
    "Upload",
    "ValueKey",
    "ValueState",
    "WebSession",
    "Webhook",
]
