"""What became of a batch of points."""

from dataclasses import dataclass

from service.core.errors import ServiceError


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch that is in the database."""

    fresh: int
    """Points that were not there."""
    duplicates: int
    job_pk: int
    job_id: str
    sequence: int


Outcome = Stored | ServiceError
