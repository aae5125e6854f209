"""Finds the artifact of a job that holds the samples of a step. Pure functions."""

import re
from collections.abc import Iterable

from trainyard.client.errors import NotFoundError
from trainyard.contract.wire.files import ArtifactResource
from trainyard.contract.wire.samples import FOLDER, MAX_BYTES

_FILE = re.compile(rf"{FOLDER}/step-(\d{{10,16}})\.json")


def samples_artifact(artifacts: Iterable[ArtifactResource], step: int | None = None) -> ArtifactResource:
    """Return the file with the samples of a step, or of the last step that has some.

    Raises:
        NotFoundError: no such file exists, or it is larger than samples are.
    """
    by_step = {int(match[1]): one for one in artifacts if (match := _FILE.fullmatch(one.path))}
    if not by_step:
        raise NotFoundError("the job has no samples yet: they are generated at evaluations, with `evaluation.samples`")
    chosen = max(by_step) if step is None else step
    if chosen not in by_step:
        known = ", ".join(map(str, sorted(by_step)[-20:]))
        raise NotFoundError(f"the job has no samples of step {chosen}; it has those of steps {known}")
    if by_step[chosen].size_bytes > MAX_BYTES:
        raise NotFoundError(
            f"the file of step {chosen} is larger than samples are; download it with `trainyard artifacts`"
        )
    return by_step[chosen]
