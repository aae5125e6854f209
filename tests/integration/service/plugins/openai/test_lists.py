"""Positions in lists, ranges and names of files, and warnings about a request."""

import pytest

from tests.support.openai_requests import JOBS, PREFIX, create, get, upload
from tests.support.seeds import write_models_file
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


@pytest.fixture
def job(world: World) -> str:
    write_models_file(world)
    return str(create(world)["id"])


def ids(page: dict) -> list[str]:
    return [one["id"] for one in page["data"]]


class TestAfter:
    def test_unknown_position_is_refused_in_every_list(self, world: World, job: str) -> None:
        other = create(world)["id"]
        (event,) = ids(get(world, f"fine_tuning/jobs/{other}/events", limit=1))
        lists = {
            "files": ("nothing", job),
            "fine_tuning/jobs": ("ftjob-abc", "file_" + "0" * 26),
            f"fine_tuning/jobs/{job}/events": ("ftevent_1", event, f"ftevent_{job[-12:]}_999", "ckpt_" + "0" * 26),
            f"fine_tuning/jobs/{job}/checkpoints": ("ckpt_" + "0" * 26, "nothing"),
        }
        for path, positions in lists.items():
            for after in positions:
                error = get(world, path, 400, after=after)["error"]
                assert (error["param"], error["code"]) == ("after", "invalid_value"), (path, after)
                assert f"{after!r} is not the id of" in error["message"]

    def test_checkpoint_of_another_job_is_refused(self, world: World, job: str) -> None:
        world.start(job).checkpoint(4)
        (checkpoint,) = ids(get(world, f"fine_tuning/jobs/{job}/checkpoints"))
        assert get(world, f"fine_tuning/jobs/{job}/checkpoints", after=checkpoint)["data"] == []
        other = create(world)["id"]
        get(world, f"fine_tuning/jobs/{other}/checkpoints", 400, after=checkpoint)

    def test_files_can_be_deleted_while_they_are_listed(self, world: World) -> None:
        files = [upload(world, f"{number}.jsonl") for number in range(4)]
        received: list[str] = []
        while page := ids(get(world, "files", limit=1, **({"after": received[-1]} if received else {}))):
            received += page
            assert world.client.delete(f"{PREFIX}/files/{page[0]}").status_code == 200
        assert received == files[::-1]

    def test_events_continue_after_each_of_them(self, world: World, job: str) -> None:
        worker = world.start(job)
        worker.metrics([("train/loss", step, 1.0) for step in (1, 2, 3)])
        path = f"fine_tuning/jobs/{job}/events"
        everything = ids(get(world, path, limit=100))
        assert len(everything) > 4
        for number, event in enumerate(everything):
            assert ids(get(world, path, limit=100, after=event)) == everything[number + 1 :]


class TestFiles:
    def test_download_has_the_file_s_name(self, world: World) -> None:
        file = upload(world, "my chats.jsonl")
        for path in (f"{PREFIX}/files/{file}/content", f"/v1/files/{file}/content"):
            assert world.client.get(path).headers["content-disposition"] == 'attachment; filename="my chats.jsonl"'

    def test_results_have_ranges_and_a_name(self, world: World, job: str) -> None:
        worker = world.start(job)
        worker.metrics([("train/loss", step, 1.0 / step) for step in (1, 2, 3)])
        worker.end("completed")
        world.tick()
        (file,) = get(world, f"fine_tuning/jobs/{job}")["result_files"]
        path = f"{PREFIX}/files/{file}/content"
        whole = world.client.get(path)
        assert (whole.status_code, whole.headers["accept-ranges"]) == (200, "bytes")
        assert whole.headers["content-disposition"] == 'attachment; filename="step_metrics.csv"'
        part = world.client.get(path, headers={"Range": "bytes=5-14", "If-Range": whole.headers["etag"]})
        assert (part.status_code, part.content) == (206, whole.content[5:15])
        assert part.headers["content-range"] == f"bytes 5-14/{len(whole.content)}"
        outside = world.client.get(path, headers={"Range": "bytes=9999-"})
        assert (outside.status_code, outside.json()["error"]["code"]) == (416, "range_not_satisfiable")
        assert world.client.get(path, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304


class TestRequests:
    def messages(self, world: World, job: str) -> list[str]:
        return [
            one["message"] for one in get(world, f"fine_tuning/jobs/{job}/events")["data"] if one["level"] == "warn"
        ]

    def test_unusual_hyperparameters_are_warned_about_by_events(self, world: World) -> None:
        write_models_file(world)
        made = create(world, hyperparameters={"learning_rate_multiplier": 5000})
        (message,) = self.messages(world, made["id"])
        assert message.startswith(
            "learning_rate_multiplier 5000 gives a learning rate of 1; usual multipliers are from"
        )
        usual = create(world, hyperparameters={"learning_rate_multiplier": 2})
        assert self.messages(world, usual["id"]) == []

    def test_key_that_was_used_for_another_request_is_named(self, world: World, job: str) -> None:
        headers = {"Idempotency-Key": "monday"}
        for suffix, status in (("one", 200), ("two", 400)):
            body = {"model": "tiny", "training_file": get(world, f"fine_tuning/jobs/{job}")["training_file"]}
            answer = world.client.post(JOBS, json=body | {"suffix": suffix}, headers=headers)
            assert answer.status_code == status, answer.text
        assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (
            "Idempotency-Key",
            "idempotency_key_reused",
        )
