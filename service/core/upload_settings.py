"""Settings of uploaded data files."""

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from trainyard.contract.sizes import GIB


class UploadSettings(BaseSettings):
    """The part of the settings that limits uploads."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    file_quota_gb_per_user: Annotated[float, Field(ge=0)] = 50.0
    """Maximum size of a user's uploaded data files, in GiB; further uploads are rejected. Unfinished uploads count with
    their whole size. 0: no limit."""
    max_file_gb: Annotated[float, Field(gt=0)] = 10.0
    """Maximum size of an uploaded data file, in GiB."""
    models_file: Path | None = None
    """File with the base models that clients of OpenAI's API can fine-tune; default: `models.yaml` in the state
    directory. `docs/openai.md` describes it."""
    upload_retention_hours: Annotated[int, Field(ge=1)] = 24
    """How long an unfinished upload waits for its next part. Contents of files that nothing refers to are removed after
    the same time."""

    @property
    def file_quota_bytes(self) -> int | None:
        """Quota of a user's data files in bytes; None: no limit."""
        return int(self.file_quota_gb_per_user * GIB) or None

    @property
    def file_limit_bytes(self) -> int:
        return int(self.max_file_gb * GIB)
