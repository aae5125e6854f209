"""`list` by a query, `tag`, `note`, `rename`, `archive` and `views`, and the client's table of jobs."""

import asyncio
import json
import math

import pytest

from tests.unit.trainyard.fake_service import TIME, FakeService, job, page
from trainyard.client import NotFoundError

LONG = "job_01kdvdna00az9cxjnszk8v8abh"
VIEW = {
    "object": "view", "id": "view_01kdvdna00az9cxjnszk8v8abh", "name": "Best", "shared": True, "where": "seed = 1",
    "sort": "eval/loss", "columns": ["seed"], "created_by": "anna", "created_at": TIME, "updated_at": TIME,
}  # fmt: skip


def valued(id_: str, **values: object) -> dict[str, object]:
    return {**job(id_), "values": values}


class TestList:
    def test_query_order_and_columns_are_sent_and_shown(self, service, run):
        service.on("GET", "/v1/jobs", page(valued("a1", **{"optimizer.lr": 0.001, "eval/loss": "NaN", "tag": None})))
        done = run(
            "list",
            "--where",
            "seed = 1",
            "--sort",
            "-eval/loss",
            "--columns",
            "optimizer.lr,eval/loss",
            "--columns",
            "tag",
        )
        params = service.requests[-1].url.params
        assert (params["where"], params["sort"]) == ("seed = 1", "-eval/loss")
        assert params.get_list("columns") == ["optimizer.lr", "eval/loss", "tag"]
        assert "archived" not in params
        head, row = done.stdout.splitlines()
        assert head.split() == ["JOB", "NAME", "optimizer.lr", "eval/loss", "tag"]
        assert row.split() == ["a1", "digits-ddp", "0.001", "NaN", "-"]

    def test_runtime_of_a_job_that_runs_is_that_of_show(self, service, run):
        running = {**valued("a1", runtime=None), "status": "running", "started_at": TIME}
        ended = {**valued("a2", runtime=125.0), "started_at": TIME, "finished_at": "2026-01-02T03:06:10.000Z"}
        service.on("GET", "/v1/jobs", page(running, ended, valued("a3", runtime=None)))
        service.on("GET", "/v1/jobs/a2", ended)
        _, first, second, third = run("list", "--columns", "runtime").stdout.splitlines()
        assert first.split("digits-ddp")[1].strip() != "-"
        assert second.split("digits-ddp")[1].strip() == "2 min 5 s"
        assert third.split("digits-ddp")[1].strip() == "-"
        assert "runtime     2 min 5 s" in run("show", "a2").stdout

    def test_csv_neutralizes_formulas(self, service, run):
        service.on("GET", "/v1/jobs", page({**valued("a1", tag="=1+1", seed=3), "name": "@x,y"}))
        done = run("list", "--csv", "--columns", "tag,seed")
        assert done.stdout == "id,name,tag,seed\na1,\"'@x,y\",'=1+1,3\n"

    def test_ids_alone_are_printed_for_other_commands(self, service, run):
        service.on("GET", "/v1/jobs", page(job("a1"), job("a2")))
        assert run("list", "--ids", "--archived", "all").stdout == "a1\na2\n"
        assert service.requests[-1].url.params["archived"] == "all"

    def test_a_saved_view_is_listed_and_options_replace_it(self, service, run):
        service.on("GET", "/v1/views", page(VIEW), page(VIEW), page(VIEW))
        service.on("GET", "/v1/jobs", page(valued("a1", seed=1)), page(valued("a1", seed=1)))
        run("list", "--view", "Best")
        params = service.requests[-1].url.params
        assert (params["where"], params["sort"], params["columns"]) == ("seed = 1", "eval/loss", "seed")
        run("list", "--view", "Best", "--sort", "seed")
        assert service.requests[-1].url.params["sort"] == "seed"
        assert "no view 'other'" in run("list", "--view", "other").stderr

    def test_invalid_options(self, run):
        assert run("list", "--archived", "maybe").exit_code == 2
        assert run("list", "--csv", "--json").exit_code == 2


class TestEdit:
    def test_tags_are_added_and_removed(self, service, run):
        changed = {**job("a1"), "tags": {"baseline": "", "stage": "prod"}}
        service.on("GET", "/v1/jobs/a1", job("a1")).on("PATCH", "/v1/jobs/a1", changed)
        done = run("tag", "a1", "--add", "baseline", "--add", "stage=prod", "--remove", "old")
        assert json.loads(service.requests[-1].content) == {"tags": {"baseline": "", "stage": "prod", "old": None}}
        assert done.stdout == "job a1: tags: baseline, stage=prod\n"
        assert "give --add, --remove or --project" in run("tag", "a1").stderr

    def test_jobs_are_moved_to_a_project(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1")).on("PATCH", "/v1/jobs/a1", {**job("a1"), "project": "digits"})
        assert "project digits, tags: none" in run("tag", "a1", "--project", "digits").stdout
        assert json.loads(service.requests[-1].content) == {"project": "digits"}
        service.on("GET", "/v1/jobs", page())
        run("list", "--project", "digits")
        assert service.requests[-1].url.params["project"] == "digits"

    def test_notes_are_written_and_printed(self, service, run, tmp_path):
        noted = {**job("a1"), "notes": "one\n\x1b[31mtwo"}
        service.on("GET", "/v1/jobs/a1", noted, noted).on("PATCH", "/v1/jobs/a1", noted, job("a1"))
        assert run("note", "a1").stdout == "one\ntwo\n"
        file = tmp_path / "notes.md"
        file.write_text("# Why")
        assert run("note", "a1", "--file", str(file)).stdout == "job a1: notes written\n"
        assert json.loads(service.requests[-1].content) == {"notes": "# Why"}
        assert run("note", "a1", "x", "--file", str(file)).exit_code == 2

    def test_rename_and_archive(self, service, run):
        service.on("GET", "/v1/jobs/a1", job("a1"), job("a1"), job("a1"))
        service.on("PATCH", "/v1/jobs/a1", {**job("a1"), "name": "best"}, {**job("a1"), "archived": True}, job("a1"))
        assert run("rename", "a1", "best").stdout == "job a1: renamed to best\n"
        assert run("archive", "a1").stdout == "job a1: archived\n"
        assert run("archive", "a1", "--undo").stdout == "job a1: no longer archived\n"
        assert json.loads(service.requests[-1].content) == {"archived": False}

    def test_views_are_listed(self, service, run):
        service.on("GET", "/v1/views", page(VIEW))
        assert "seed = 1" in run("views").stdout


def test_a_list_of_jobs_is_a_table_for_data_frames() -> None:
    values = [valued("a1", **{"eval/loss": 0.5}), valued("a2", **{"eval/loss": "-Infinity"})]
    service = FakeService().on("GET", "/v1/jobs", page(*values), page(*values), page(*values))
    with service.client() as client:
        table = client.jobs(columns=["eval/loss"]).table()
        assert [handle.id for handle in client.jobs(sort="eval/loss")] == ["a1", "a2"]
    assert table == {
        "id": ["a1", "a2"],
        "name": ["digits-ddp"] * 2,
        "status": ["queued"] * 2,
        "eval/loss": [0.5, -math.inf],
    }

    with service.client() as client, pytest.raises(TypeError, match=r"no index; iterate over `jobs\(limit=...\)`"):
        client.jobs()[0]

    async def read() -> dict[str, list[object]]:
        async with service.async_client() as client:
            return await client.jobs().table()

    assert list(asyncio.run(read())) == ["id", "name", "status", "created_by", "created_at"]


def test_views_and_edits_of_the_client() -> None:
    service = FakeService().on("GET", "/v1/views", page(VIEW), page(VIEW)).on("POST", "/v1/views", VIEW)
    service.on("PATCH", "/v1/jobs/a1", job("a1"))
    with service.client() as client:
        assert client.view("Best").where == "seed = 1"
        client.save_view("Best", where="seed = 1")
        client.edit("a1", tags=["one"], archived=True)
        assert json.loads(service.requests[-1].content) == {"tags": {"one": ""}, "archived": True}
        try:
            client.view("none")
        except NotFoundError as error:
            assert "no view 'none'" in str(error)  # noqa: PT017
