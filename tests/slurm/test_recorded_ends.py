"""The Slurm of this machine ends jobs as the one whose ends were recorded."""

import pytest

from tests.support.slurm_scenarios import record_ends
from tests.unit.service.reconciler.test_recorded_ends import test_recorded_end_has_its_true_cause as judge

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(900)]


def test_ends_of_this_release_have_their_true_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, _ = record_ends(accounting=True, names=["cancellations", "site_programs"])
    assert len(ends) > 10
    for end in ends:
        judge(end, monkeypatch)
