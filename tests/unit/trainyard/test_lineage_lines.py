"""The tree of `trainyard show --lineage`."""

from trainyard.cli.jobs import lineage_lines
from trainyard.contract.wire.lineage import JobLineage, RelatedDependency, RelatedJob


def test_copy_of_a_spec_took_no_checkpoint() -> None:
    source = RelatedJob(job_id="job_1", name="first", status="succeeded")
    fork = RelatedJob(job_id="job_3", name="third", status="running", step=20, continues=True)
    assert list(lineage_lines(JobLineage(job_id="job_2", ancestors=[source], forks=[fork]), "second")) == [
        "first  job_1  (without its checkpoint, succeeded)",
        "  second  job_2  (this job)",
        "    fork: third  job_3  (from step 20, running)",
    ]


def test_dependencies_name_the_end_that_they_need() -> None:
    first = RelatedDependency(job_id="job_1", name="first", status="failed", any_end=True)
    gone = RelatedDependency(job_id="job_0")
    third = RelatedDependency(job_id="job_3", name="third", status="queued")
    lineage = JobLineage(job_id="job_2", prerequisites=[first, gone], dependents=[third], has_more_dependents=True)
    assert list(lineage_lines(lineage, "second")) == [
        "second  job_2  (this job)",
        "  after: first  job_1  (any end, failed)",
        "  after: deleted or not visible  job_0  (success)",
        "  before: third  job_3  (success, queued)",
        "  … and more jobs that wait for it",
    ]
