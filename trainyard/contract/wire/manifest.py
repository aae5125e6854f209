"""manifest.json: its presence makes a folder a checkpoint. Written last."""

from pydantic import Field

from trainyard.contract.base import AnyFloat, NonNegativeInt, PositiveInt, Resource, Timestamp


class ManifestFile(Resource):
    """One file of the checkpoint."""

    size: NonNegativeInt
    sha256: str


class Manifest(Resource):
    """Every file with its size and digest, and where the state comes from."""

    version: int = 1
    job_id: str
    step: NonNegativeInt
    execution: PositiveInt
    attempt: PositiveInt
    world_size: PositiveInt
    strategy: str
    files: dict[str, ManifestFile]
    metrics: dict[str, AnyFloat] = Field(default_factory=dict)
    sources: dict[str, str] = Field(default_factory=dict)
    """Digests of the files that the run is trained from and the checkpoint does not hold, by field of the spec."""
    classes: tuple[str, ...] = ()
    """Names of the outputs of a model that classifies. Checkpoints of former releases lack them."""
    created_at: Timestamp

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files.values())
