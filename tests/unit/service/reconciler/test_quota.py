"""Jobs that wait for their user's GPU quota or for other members of their sweep."""

from service.jobs.conditions import Condition
from service.jobs.quota import UserQuotas
from service.reconciler.quota import QuotaEntry, blocked_jobs, over_gpu_quota, over_project_quota, over_sweep_limit
from trainyard.contract.wire.cluster import MaintenanceResource


def job(no: int, gpus: int, *, user: str = "ada", role: str = "user", waiting: bool = True) -> QuotaEntry:
    return QuotaEntry(no, f"job_{no}", user, role, gpus, waiting)


def member(
    no: int, *, waiting: bool = True, gpus: int = 1, sweep: str | None = "swp_a", parallel: int | None = 2
) -> QuotaEntry:
    return QuotaEntry(no, f"job_{no}", "ada", "user", gpus, waiting, sweep, parallel)


class TestGpuQuota:
    def test_without_a_limit_no_job_waits(self) -> None:
        assert over_gpu_quota([job(1, 100), job(2, 100, waiting=False)], UserQuotas()) == {}

    def test_submitted_jobs_count_even_if_created_later(self) -> None:
        blocked = over_gpu_quota([job(1, 4), job(2, 6, waiting=False)], UserQuotas(gpus=8))
        assert list(blocked) == [1]
        assert blocked[1].message == "Waiting for GPU quota: ada uses 6 of 8 GPUs, and this job needs 4."

    def test_jobs_start_in_order_up_to_the_limit(self) -> None:
        assert list(over_gpu_quota([job(1, 4), job(2, 4), job(3, 4)], UserQuotas(gpus=8))) == [3]

    def test_a_small_job_does_not_overtake_a_large_one(self) -> None:
        blocked = over_gpu_quota([job(1, 2, waiting=False), job(2, 8), job(3, 1)], UserQuotas(gpus=8))
        assert list(blocked) == [2, 3]
        assert blocked[3].message == "Waiting for GPU quota: job_2 of the same user is ahead."

    def test_a_finished_job_changes_few_status_messages(self) -> None:
        """Each change costs a transaction and an event, and thousands of jobs may wait."""
        jobs = [job(1, 1, waiting=False), *(job(no, 1) for no in range(2, 100))]
        before = over_gpu_quota(jobs, UserQuotas(gpus=1))
        after = over_gpu_quota([job(2, 1, waiting=False), *jobs[2:]], UserQuotas(gpus=1))
        assert len([no for no in after if after[no] != before[no]]) <= 2

    def test_each_user_and_role_has_its_own_limit(self) -> None:
        jobs = [job(1, 8, waiting=False), job(2, 8, user="bob"), job(3, 64, user="root", role="admin")]
        assert over_gpu_quota(jobs, UserQuotas(gpus=8)) == {}
        assert list(over_gpu_quota(jobs, UserQuotas(gpus=8, admin_gpus=32))) == [3]

    def test_a_job_that_can_never_fit_reports_it(self) -> None:
        blocked = over_gpu_quota([job(1, 9)], UserQuotas(gpus=8))
        assert (
            blocked[1].message == "Exceeds the GPU quota: needs 9 GPUs, and the limit is 8 per user. It cannot start."
        )


class TestPrerequisites:
    WAITS = Condition("after", {"jobs": "job_9 to succeed"})

    def test_a_job_that_waits_for_another_holds_no_quota(self) -> None:
        jobs = [job(1, 8), job(2, 8), member(3, parallel=1), member(4, parallel=1)]
        blocked = blocked_jobs(jobs, UserQuotas(gpus=9), waiting={1: self.WAITS, 3: self.WAITS})
        assert blocked == {1: self.WAITS, 3: self.WAITS}

    def test_it_is_still_what_is_stated_during_maintenance(self) -> None:
        maintenance = MaintenanceResource(active=True)
        blocked = blocked_jobs([job(1, 1), job(2, 1)], UserQuotas(), maintenance, {1: self.WAITS})
        assert [blocked[no].code for no in (1, 2)] == ["after", "maintenance"]

    def test_a_job_that_is_to_end_does_not_wait(self) -> None:
        assert blocked_jobs([job(1, 1, waiting=False)], UserQuotas(), waiting={1: self.WAITS}) == {}


class TestSweepLimit:
    def test_the_oldest_members_start_first(self) -> None:
        blocked = over_sweep_limit([member(1), member(2), member(3), member(4)])
        assert set(blocked) == {3, 4}
        assert blocked[3].message == "Waiting for other members of sweep swp_a, which runs at most 2 jobs at once."

    def test_submitted_members_count_even_if_created_later(self) -> None:
        assert set(over_sweep_limit([member(1), member(2, waiting=False), member(3)])) == {3}

    def test_a_paused_member_does_not_count(self) -> None:
        assert over_sweep_limit([member(1, waiting=False, gpus=0), member(2), member(3)]) == {}

    def test_each_sweep_has_its_own_limit(self) -> None:
        jobs = [member(1, parallel=1), member(2, sweep="swp_b", parallel=1), member(3, sweep=None, parallel=None)]
        assert over_sweep_limit(jobs) == {}

    def test_without_a_limit_all_members_start(self) -> None:
        assert over_sweep_limit([member(n, parallel=None) for n in range(9)]) == {}


def test_a_job_that_waits_for_its_sweep_blocks_no_other_job() -> None:
    jobs = [member(1, gpus=8, waiting=False, parallel=1), member(2, gpus=8, parallel=1), job(3, 8)]
    assert set(blocked_jobs(jobs, UserQuotas(gpus=16))) == {2}


class TestProjectQuota:
    def entry(
        self, number: int, gpus: int, *, waiting: bool = True, user: str = "ada", name: str = "zoo"
    ) -> QuotaEntry:
        return QuotaEntry(number, f"job_{number}", user, "user", gpus, waiting, project=name)

    def test_jobs_of_all_users_count_and_start_in_their_order(self) -> None:
        jobs = [self.entry(1, 2, waiting=False), self.entry(2, 2, user="bob"), self.entry(3, 2), self.entry(4, 1)]
        blocked = over_project_quota(jobs, {"zoo": 4})
        assert set(blocked) == {3, 4}, "a small job does not overtake"
        text = blocked[3].message
        assert "the project zoo uses 4 of 4 GPUs, and this job needs 2; an administrator can raise it" in text
        assert "older jobs of the project zoo are ahead" in blocked[4].message

    def test_other_projects_and_labels_have_no_limit(self) -> None:
        jobs = [self.entry(1, 9), self.entry(2, 9, name="Zoo"), QuotaEntry(3, "job_3", "ada", "user", 9, True)]
        assert set(over_project_quota(jobs, {"zoo": 8})) == {1}
        assert over_project_quota(jobs, {}) == {}

    def test_jobs_that_wait_for_their_users_quota_take_none_of_the_project(self) -> None:
        jobs = [self.entry(1, 4), self.entry(2, 4), self.entry(3, 4, user="bob")]
        blocked = blocked_jobs(jobs, UserQuotas(gpus=4), projects={"zoo": 8})
        assert set(blocked) == {2}
        assert set(blocked_jobs(jobs, UserQuotas(gpus=4), projects={"zoo": 4})) == {2, 3}

    def test_a_job_that_can_never_start_names_the_limit(self) -> None:
        (condition,) = over_project_quota([self.entry(1, 9)], {"zoo": 8}).values()
        assert "needs 9 GPUs, and the limit of the project zoo is 8. It cannot start" in condition.message
