"""The tree of `trainyard show --lineage`."""

from trainyard.cli.lineage import lineage_lines
from trainyard.contract.wire.lineage import JobLineage, RelatedJob


def test_copy_of_a_spec_took_no_checkpoint() -> None:
    source = RelatedJob(job_id="job_1", name="first", status="succeeded")
    fork = RelatedJob(job_id="job_3", name="third", status="running", step=20, continues=True)
    assert list(lineage_lines(JobLineage(job_id="job_2", ancestors=[source], forks=[fork]), "second")) == [
        "first  job_1  (without its checkpoint, succeeded)",
        "  second  job_2  (this job)",
        "    fork: third  job_3  (from step 20, running)",
    ]
