"""What the service remembers of nodes over all jobs: two jobs that do not start on a node exclude it for all."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa

from service.cluster.repository import NodeFaultRepository
from service.cluster.schemas import excluded_node_resource
from service.db.models import Delivery, NodeFault
from service.db.visibility import Reader, jobs_of, visible_ids
from service.plugins.webhooks.part import part_of
from service.scheduler.base import (
    ClusterReport,
    EndedAs,
    Observation,
    Rejected,
    SchedulerUnavailableError,
    SubmittedJob,
)
from tests.support.world import FakeScheduler, World
from trainyard.contract.spec.training_spec import NODE_TEST
from trainyard.contract.wire.cluster import PartitionResource

pytestmark = pytest.mark.databases("sqlite")

NODES = ["n1", "n2", "n3", "n4"]
LAUNCH_FAILED = "Slurm: FAILED, exit code 0:53"


@pytest.fixture
def world(world: World) -> World:
    """Return a service on a Slurm with one partition of four nodes."""
    world.settings.backend = world.scheduler.name = "slurm"
    world.scheduler.nodes = ClusterReport(
        partitions=[PartitionResource(name="gpu", default=True, nodes={"idle": 4})], members={"gpu": NODES}
    )
    world.reconciler = world.new_reconciler("one")
    return world


@dataclass
class EditingScheduler(FakeScheduler):
    """A scheduler that changes the excluded nodes of pending jobs."""

    edits: list[tuple[list[str], list[str]]] = field(default_factory=list)
    """The tags and the nodes of each request."""
    refused: tuple[str, ...] = ()
    """The nodes in a request that it refuses."""

    def exclude_nodes(self, jobs: Sequence[SubmittedJob], nodes: Sequence[str]) -> None:
        if set(self.refused) & set(nodes):
            raise SchedulerUnavailableError("scontrol: it does not answer")
        self.edits.append(([job.tag for job in jobs], list(nodes)))


@pytest.fixture
def queue(world: World) -> EditingScheduler:
    """Return the scheduler of the world, whose queue can be changed."""
    scheduler = EditingScheduler("slurm", nodes=world.scheduler.nodes)
    world.scheduler = scheduler
    world.reconciler = world.new_reconciler("one")
    return scheduler


def end(world: World, job: str, node: str, end_state: EndedAs = "launch_failed", message: str = LAUNCH_FAILED) -> None:
    """End the job's attempt, which has not started."""
    tag = world.launch_document(job).tag
    world.scheduler.states[tag] = Observation("ended", message, (node,), end_state=end_state)
    world.tick()


def fail_to_start(world: World, node: str, jobs: int = 2) -> list[str]:
    """Submit jobs whose first attempt fails to start on a node, all at once."""
    ids = [world.submit() for _ in range(jobs)]
    world.tick()
    for job in ids:
        end(world, job, node)
    return ids


def excluded(world: World) -> list[str]:
    return [node["node"] for node in world.client.get("/v1/cluster").json()["excluded_nodes"]]


def avoided(world: World) -> list[str]:
    """Return the nodes that a new job avoids."""
    job = world.submit()
    world.tick()
    return list(world.launch_document(job).excluded_nodes)


def events(world: World, job: str) -> list[dict[str, Any]]:
    return [
        event
        for event in world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
        if event["type"].startswith("node_ex")
    ]


def test_tests_of_nodes_exclude_none_and_avoid_none(world: World, queue: EditingScheduler) -> None:
    """`trainyard doctor --deep` runs them, often in the middle of a repair."""
    label = {NODE_TEST: "doctor"}
    tests = [world.submit(metadata=label) for _ in range(2)]
    world.tick()
    for job in tests:
        end(world, job, "n1")
    assert (excluded(world), avoided(world)) == ([], [])
    for job in tests:
        world.client.post(f"/v1/jobs/{job}/cancel")
    pending = world.submit(metadata=label)
    fail_to_start(world, "n1")
    world.tick(times=2)
    assert excluded(world) == ["n1"]
    test = world.submit(metadata=label)
    world.tick()
    assert list(world.launch_document(test).excluded_nodes) == []
    tags = [tag for tags, _ in queue.edits for tag in tags]
    assert world.launch_document(pending).tag not in tags


@pytest.mark.parametrize("has_log", [False, True])
def test_a_node_that_writes_nothing_has_not_mounted_the_folder(world: World, has_log: bool) -> None:
    """Slurm 24.11 makes the missing folder on the node, and calls it no failed launch."""
    jobs = [world.submit() for _ in range(2)]
    world.tick()
    for job in jobs:
        if has_log:
            (world.folder(job).submitit / "7_0_log.err").write_text("")
        end(world, job, "n1", "failed", "Slurm: FAILED, NonZeroExitCode")
    assert excluded(world) == ([] if has_log else ["n1"])
    ended = [event["message"] for event in world.client.get(f"/v1/jobs/{jobs[0]}/events").json()["data"]]
    cause = "its node could not write to the run directory, which is probably not mounted there (Slurm: FAILED"
    assert any(cause in message for message in ended) is not has_log


@pytest.mark.databases("sqlite", "postgres")
def test_a_deleted_run_directory_blames_no_node(world: World) -> None:
    jobs = [world.submit() for _ in range(2)]
    world.tick()
    for job in jobs:
        shutil.rmtree(world.folder(job).root.parent.parent)
        tag = next(plan.tag for plan in world.scheduler.submitted if job in str(plan.folder))
        world.scheduler.states[tag] = Observation("ended", LAUNCH_FAILED, ("n1",), end_state="launch_failed")
        world.tick()
    messages = [event["message"] for event in world.client.get(f"/v1/jobs/{jobs[1]}/events").json()["data"]]
    assert any("Cause: its run directory was deleted before it started" in message for message in messages)
    assert excluded(world) == []
    assert [world.client.get(f"/v1/jobs/{job}/attempts").json()["data"][0]["failed_node"] for job in jobs] == [None] * 2


def test_all_jobs_avoid_a_node_where_two_jobs_did_not_start(world: World) -> None:
    first, second = fail_to_start(world, "n2")
    job = world.submit()
    world.tick()
    assert world.launch_document(job).excluded_nodes == ("n2",)
    (event,) = events(world, job)
    assert event["message"] == (
        "Attempt 1 avoids n2 (Slurm could not launch jobs there), as all jobs do now; `trainyard cluster` shows until "
        "when"
    )
    assert event["data"] == {"nodes": ["n2"], "attempt": 1}
    (shown,) = world.client.get("/v1/cluster").json()["excluded_nodes"]
    assert (shown["node"], shown["partitions"], shown["jobs"]) == ("n2", ["gpu"], 2)
    assert [(fault["job_id"], fault["message"]) for fault in shown["faults"]] == [
        (second, LAUNCH_FAILED),
        (first, LAUNCH_FAILED),
    ]
    world.clock.advance(30 * 60)
    assert avoided(world) == []
    assert excluded(world) == []


@pytest.mark.databases("sqlite", "postgres")
def test_pending_attempts_avoid_the_node_until_its_exclusion_ends(world: World, queue: EditingScheduler) -> None:
    waiting = [world.submit(), world.submit(), world.submit(resources={"exclude": "n[3-4]"})]
    fail_to_start(world, "n2")
    tags = [world.launch_document(job).tag for job in waiting]
    requested = {frozenset(edited): nodes for edited, nodes in queue.edits}
    assert requested == {frozenset(tags[:2]): ["n2"], frozenset(tags[2:]): ["n[3-4]", "n2"]}
    assert [event["data"]["nodes"] for job in waiting for event in events(world, job)] == [["n2"]] * 3
    world.tick(3)
    assert len(queue.edits) == 2, "each change is requested once"
    queue.edits.clear()
    late = world.submit()
    world.tick(2)
    assert queue.edits == [], "a later attempt has the exclusion from its beginning"
    world.reconciler = world.new_reconciler("one")
    world.tick(2)
    assert queue.edits == [], "a restart changes nothing"
    world.client.delete("/v1/cluster/excluded-nodes/n2")
    world.tick(2)
    changed = {tag: nodes for tags, nodes in queue.edits for tag in tags}
    assert [changed[world.launch_document(job).tag] for job in [*waiting, late]] == [[], [], ["n[3-4]"], []]


def test_lifted_exclusion_does_not_come_back(world: World, queue: EditingScheduler) -> None:
    fail_to_start(world, "n2")
    queue.outcome = Rejected("Requested node configuration is not available")
    job = world.submit()
    world.tick()
    queue.outcome = None
    world.tick(3)
    assert world.status(job) == "pending"
    assert [tag for tags, _ in queue.edits for tag in tags if tag == world.launch_document(job).tag] == []


def test_change_of_the_queue_is_repeated_a_minute_after_a_failure(world: World, queue: EditingScheduler) -> None:
    queue.refused = ("n2",)
    job = world.submit()
    fail_to_start(world, "n2")
    queue.refused = ()
    world.pass_time(50)
    assert (queue.edits, events(world, job)) == ([], [])
    world.pass_time(20)
    assert queue.edits == [([world.launch_document(job).tag], ["n2"])]


def test_refused_change_does_not_prevent_the_others(world: World, queue: EditingScheduler) -> None:
    queue.refused = ("n1",)
    jobs = [world.submit(resources={"exclude": "n1"}), world.submit(), world.submit(resources={"exclude": "n3"})]
    fail_to_start(world, "n2")
    world.pass_time(120, ticks=12)
    tags = [world.launch_document(job).tag for job in jobs]
    assert sorted(queue.edits) == sorted([([tags[1]], ["n2"]), ([tags[2]], ["n3", "n2"])])


def test_faults_of_one_job_exclude_no_node(world: World) -> None:
    (job,) = fail_to_start(world, "n2", jobs=1)
    assert avoided(world) == []
    world.tick()
    assert world.launch_document(job).excluded_nodes == ("n2",), "its own next attempt still avoids the node"


@pytest.mark.parametrize("end_state", ["failed", "out_of_memory", "preempted", "time_limit", "cancelled"])
def test_other_ends_exclude_no_node(world: World, end_state: EndedAs) -> None:
    for job in [world.submit(), world.submit()]:
        world.tick()
        (world.folder(job).submitit / "7_0_log.err").write_text("")
        end(world, job, "n2", end_state, "Slurm: ...")
    assert avoided(world) == []


def test_a_programs_own_error_excludes_no_node(world: World) -> None:
    for _ in range(2):
        job = world.submit(restart={"max_retries": 0})
        worker = world.start(job)
        assert worker.finish("error", failure={"type": "ValueError", "message": "bad"}).status_code == 200
        end(world, job, "n2", "failed", "Slurm: FAILED, exit code 1:0")
        assert world.status(job) == "failed"
    assert avoided(world) == []


def test_failed_checks_of_the_launcher_exclude_the_node_and_fail_no_job(world: World) -> None:
    failure = {"type": "NodeNotReady", "message": "did not start on node n2: no driver", "node": "n2"}
    for _ in range(2):
        job = world.submit(restart={"max_retries": 0})
        worker = world.start(job)
        assert worker.finish("node_failure", failure=failure).status_code == 200
        end(world, job, "n[1-2]", "completed", "Slurm: COMPLETED")
        assert world.status(job) == "queued"
        assert "Cause: did not start on node n2: no driver" in world.job(job)["status_message"]
    assert excluded(world) == ["n2"]


def test_a_fault_of_the_site_excludes_a_quarter_of_the_partition(world: World) -> None:
    for node in NODES:
        fail_to_start(world, node)
    assert excluded(world) == ["n4"], "the newest faults win"
    assert avoided(world) == ["n4"]
    warning = world.client.get("/v1/cluster").json()["node_warning"]
    assert "The limit is reached: n3, n2, n1 would be excluded too" in warning
    assert "the cause is probably the site" in warning


def test_no_node_is_excluded_before_the_partitions_are_known(world: World) -> None:
    world.scheduler.nodes = ClusterReport()
    fail_to_start(world, "n2")
    assert avoided(world) == []


def test_a_rejection_lifts_the_exclusions_of_the_cluster(world: World) -> None:
    fail_to_start(world, "n2")
    world.tick()
    world.scheduler.outcome = Rejected("Requested node configuration is not available")
    job = world.submit(resources={"exclude": "n1"})
    world.tick()
    assert world.status(job) == "submitting"
    world.scheduler.outcome = None
    world.tick(2)
    assert world.status(job) == "pending"
    assert [event["type"] for event in events(world, job)] == ["node_exclusion_lifted", "node_excluded"]
    assert world.launch_document(job).excluded_nodes == ()


def test_exclusions_of_the_cluster_do_not_become_those_of_the_job(world: World) -> None:
    fail_to_start(world, "n2")
    job = world.submit()
    world.tick()
    end(world, job, "n3")
    world.clock.advance(31 * 60)
    world.tick()
    assert list(world.launch_document(job).excluded_nodes) == ["n3"]


def edits_of(world: World, queue: EditingScheduler, job: str) -> list[list[str]]:
    """Return the excluded nodes in the requests about a job."""
    tag = world.launch_document(job).tag
    return [nodes for tags, nodes in queue.edits if tag in tags]


def two_nodes(world: World) -> None:
    """Let the partition have two nodes."""
    world.scheduler.nodes = ClusterReport(
        partitions=[PartitionResource(name="gpu", default=True, nodes={"idle": 2})], members={"gpu": ["n1", "n2"]}
    )
    world.clock.advance(61)  # the cluster is queried once a minute
    world.tick()


def test_pending_attempts_keep_a_node_of_their_partition(world: World, queue: EditingScheduler) -> None:
    """Slurm does not refuse a pending job that excludes all nodes, but holds it."""
    two_nodes(world)
    waits = world.submit()
    failed = fail_to_start(world, "n1")
    world.pass_time(60)
    assert [world.launch_document(job).excluded_nodes for job in failed] == [("n1",)] * 2
    queue.edits.clear()
    world.clock.advance(60)
    fail_to_start(world, "n2")
    world.tick(2)
    assert excluded(world) == ["n2"], "the newest faults win"
    changed = {tag: nodes for tags, nodes in queue.edits for tag in tags}
    assert changed[world.launch_document(waits).tag] == ["n2"]
    assert [changed[world.launch_document(job).tag] for job in failed] == [["n1"]] * 2


def test_pending_attempts_use_a_node_again_if_the_partition_shrinks(world: World, queue: EditingScheduler) -> None:
    waits = world.submit(resources={"exclude": "n[3-4]"})
    fail_to_start(world, "n2")
    world.tick(2)
    assert edits_of(world, queue, waits) == [["n[3-4]", "n2"]]
    queue.edits.clear()
    world.scheduler.nodes = ClusterReport(
        partitions=[PartitionResource(name="gpu", default=True, nodes={"idle": 3})], members={"gpu": NODES[1:]}
    )
    world.clock.advance(61)
    world.tick(2)
    assert edits_of(world, queue, waits) == [["n[3-4]"]]


def test_a_long_wait_lifts_the_exclusions_of_the_job(world: World, queue: EditingScheduler) -> None:
    """The other nodes may be drained for days."""
    (job,) = fail_to_start(world, "n2", jobs=1)
    world.pass_time(60)
    assert world.launch_document(job).excluded_nodes == ("n2",)
    world.clock.advance(29 * 60 - 2)
    world.tick()
    assert edits_of(world, queue, job) == []
    world.clock.advance(120)
    world.tick(3)
    assert edits_of(world, queue, job) == [[]]
    assert events(world, job)[0]["message"] == (
        "Attempt 2 has waited for 30 minutes, and may use n2 again, where an earlier attempt failed"
    )


def test_an_attempt_excludes_no_more_nodes_than_it_can_do_without(world: World) -> None:
    two_nodes(world)
    job = world.submit()
    world.tick()
    for node in ("n1", "n2"):
        end(world, job, node)
        world.pass_time(60)
        assert world.launch_document(job).excluded_nodes == (node,)
    both = world.submit(gpus=2, resources={"gpus_per_node": 1})
    world.tick()
    end(world, both, "n1")
    world.pass_time(60)
    assert world.launch_document(both).excluded_nodes == ()
    (event,) = [event for event in events(world, both) if event["data"]["node"] == "n1"]
    assert event["type"] == "node_exclusion_lifted"
    assert "is used again, although it probably caused the failure of attempt 1" in event["message"]


def test_faults_are_stored_for_a_day(world: World) -> None:
    fail_to_start(world, "n2")
    world.clock.advance(86_401)
    (job,) = fail_to_start(world, "n3", jobs=1)
    with world.database.read() as session:
        assert session.scalars(sa.select(NodeFault.job_id)).all() == [job]


def test_many_nodes_with_long_names_fit_into_the_batch_script(world: World) -> None:
    names = [f"{number:02}-{'n' * 60}" for number in range(32)]
    world.scheduler.nodes = ClusterReport(
        partitions=[PartitionResource(name="gpu", default=True, nodes={"idle": 32})], members={"gpu": names}
    )
    for name in names[:7]:
        fail_to_start(world, name)
    assert len(excluded(world)) == 7
    assert avoided(world) == excluded(world)[:6], "those with the newest faults"


def test_an_administrator_lets_jobs_use_a_node_again(world: World) -> None:
    fail_to_start(world, "n2")
    path = "/v1/cluster/excluded-nodes/n2"
    assert world.new_user("user", "ada").delete(path).status_code == 403
    assert excluded(world) == ["n2"]
    assert world.client.delete(path).status_code == 204
    assert (excluded(world), avoided(world)) == ([], [])
    (entry,) = world.client.get("/v1/audit?action=include_node&outcome=done").json()["data"]
    assert (entry["actor"], entry["target"]) == ("admin", "n2")
    assert world.client.delete(path).json()["error"]["code"] == "node_not_found"
    fail_to_start(world, "n2", jobs=1)
    assert avoided(world) == [], "its earlier faults are forgotten"


def test_an_owner_sees_the_faults_of_their_own_jobs_alone(world: World) -> None:
    fail_to_start(world, "n2")
    shown = []
    for name in ("ada", "admin"):
        with jobs_of(Reader(name, own_only=True)), world.database.read() as session:
            (node,) = NodeFaultRepository(session, world.clock()).exclusions("slurm").nodes
            visible = visible_ids(session, {fault.job_id for fault in node.faults})
        shown.append(len(excluded_node_resource(node, visible).faults))
    assert (len(node.faults), shown) == (2, [0, 2])
    assert len(excluded_node_resource(node).faults) == 2


def test_webhooks_of_administrators_learn_of_an_excluded_node(world: World) -> None:
    part_of(world.app_state).resolver = lambda host, port, owner: ["93.184.216.34"]
    clients = {"admin": world.client, "ada": world.new_user("user", "ada")}
    bodies = {"all": {"jobs": "all", "statuses": ["failed"]}, "own": {"jobs": "own", "statuses": ["failed"]}}
    hooks = {
        (user, jobs): client.post("/v1/webhooks", json={"url": "https://example.org/hook", **body}).json()["id"]
        for user, client in clients.items()
        for jobs, body in bodies.items()
    }
    fail_to_start(world, "n2", jobs=3)
    for (user, jobs), hook in hooks.items():
        rows = world.client.get(f"/v1/webhooks/{hook}/deliveries").json()["data"]
        types = [row["type"] for row in rows]
        assert types == (["cluster.node_excluded"] if (user, jobs) == ("admin", "all") else []), (user, jobs)
    with world.database.read() as session:
        (body,) = session.scalars(sa.select(Delivery.body))
    assert json.loads(body)["node"]["node"] == "n2"


def test_metrics_count_the_nodes(world: World) -> None:
    fail_to_start(world, "n1")
    fail_to_start(world, "n2")
    text = world.client.get("/metrics").text
    assert 'trainyard_failing_nodes{state="excluded"} 1.0' in text
    assert 'trainyard_failing_nodes{state="in_use"} 1.0' in text
