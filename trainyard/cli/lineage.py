"""`trainyard show --lineage`: the origin of a job, and the jobs and versions made from it, as a tree of lines."""

from collections.abc import Iterator

from trainyard.contract.wire.lineage import JobLineage, MadeVersion, RelatedDependency, RelatedJob


def lineage_lines(lineage: JobLineage, name: str) -> Iterator[str]:
    """Yield the ancestors of a job from the oldest on, the job with its data and models, and its forks. Pure."""
    depth = 0
    for ancestor in reversed(lineage.ancestors):
        yield _indented(depth, _job(ancestor))
        depth += 1
    yield _indented(depth, f"{name}  {lineage.job_id}  (this job)")
    for prerequisite in lineage.prerequisites:
        yield _indented(depth + 1, f"after: {_dependency(prerequisite)}")
    for version in lineage.base_versions:
        yield _indented(depth + 1, f"base: {_version(version)}")
    if lineage.base:
        yield _indented(depth + 1, f"base: {lineage.base}")
    if lineage.sweep_id:
        yield _indented(depth + 1, f"sweep: {lineage.sweep_id}")
    for data in lineage.data:
        named = f" ({data.file_name})" if data.file_name else ""
        yield _indented(depth + 1, f"{data.field}: {data.text}{named}")
    for version in lineage.versions:
        yield _indented(depth + 1, f"model: {_version(version)}")
    for fork in lineage.forks:
        yield _indented(depth + 1, f"fork: {_job(fork)}")
    if lineage.has_more_forks:
        yield _indented(depth + 1, "… and more forks")

    for dependent in lineage.dependents:
        yield _indented(depth + 1, f"before: {_dependency(dependent)}")
    if lineage.has_more_dependents:
        yield _indented(depth + 1, "… and more jobs that wait for it")


def _dependency(job: RelatedDependency) -> str:
    name = job.name or "deleted or not visible"
    return f"{name}  {job.job_id}  ({'any end' if job.any_end else 'success'}{f', {job.status}' if job.status else ''})"


def _indented(depth: int, text: str) -> str:
    return f"{'  ' * depth}{text}"


def _job(job: RelatedJob) -> str:
    state = f", {job.status}" if job.status else ""
    start = "without its checkpoint" if job.step is None else f"from step {job.step}"
    return f"{job.name or 'deleted or not visible'}  {job.job_id}  ({start}{state})"


def _version(version: MadeVersion) -> str:
    return f"{version.model}@{version.version}" + ("" if version.step is None else f", step {version.step}")
