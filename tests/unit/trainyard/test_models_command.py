"""`trainyard models`: what it sends and prints, and what a reference such as `name@alias` means."""

import json

import pytest

from tests.unit.trainyard.fake_service import TIME, error, job, page
from trainyard.cli.models import data_text
from trainyard.client.errors import NotFoundError
from trainyard.contract.wire.models import ModelDetail
from trainyard.loading.errors import LoadError
from trainyard.loading.references import choose_version, fetch_source
from trainyard.loading.sources import Choice

VERSION = {
    "model": "chat",
    "version": 2,
    "aliases": ["prod"],
    "job_id": "a1",
    "job_name": "chat-lora",
    "task": "causal_lm",
    "step": 9,
    "digest": "sha256:0",
    "metrics": {"train/loss": 1.5, "eval/loss": 0.25},
    "base": "/models/llama",
    "data": {"source": "jsonl", "path": "/data/chats.jsonl"},
    "created_by": "anna",
    "created_at": TIME,
}
MODEL = {
    "name": "chat",
    "description": "Adds \x1b[2Jnumbers",
    "created_by": "anna",
    "created_at": TIME,
    "updated_at": TIME,
    "latest_version": 2,
    "aliases": {"prod": 2},
    "versions": [VERSION, VERSION | {"version": 1, "aliases": [], "checkpoint_id": "ckpt_1"}],
}


def sent(service):
    request = service.requests[-1]
    return request.method, request.url.path, json.loads(request.content or b"null")


class TestCommands:
    def test_list_shows_newest_version_and_aliases(self, run, service):
        service.on("GET", "/v1/models", page(MODEL | {"id": "chat"}))
        done = run("models", "list")
        assert "chat  2       prod=2   anna" in done.stdout
        assert json.loads(run("models", "list", "--json").stdout)["aliases"] == {"prod": 2}

    def test_empty_list_names_the_first_command(self, run, service):
        service.on("GET", "/v1/models", page())
        assert "register one with: trainyard models register NAME JOB" in run("models", "list").stderr

    def test_show_has_the_lineage_without_escape_sequences(self, run, service):
        service.on("GET", "/v1/models/chat", MODEL)
        done = run("models", "show", "chat")
        for text in ("Adds numbers", "/data/chats.jsonl", "/models/llama", "eval/loss=0.25", "export", "step 9"):
            assert text in done.stdout
        assert "\x1b" not in done.stdout

    def test_versions_show_the_same_metrics(self, run, service):
        of_export = {"eval/accuracy": 0.5, "eval/loss": 0.25, "eval/perplexity": 2, "perf/mfu": 1, "train/loss": 1.5}
        metrics = [of_export, {"eval/loss": 0.5, "train/loss": 2, "train/lr": 1}, {"perf/mfu": 1}]
        versions = [VERSION | {"version": number, "metrics": one} for number, one in enumerate(metrics, 1)]
        service.on("GET", "/v1/models/chat", MODEL | {"versions": versions})
        rows = [row.rstrip() for row in run("models", "show", "chat").stdout.splitlines()[-3:]]
        assert rows[0].endswith("eval/loss=0.25 train/loss=1.5 eval/accuracy=0.5")
        assert rows[1].endswith("eval/loss=0.5 train/loss=2")
        assert rows[2].endswith("-")

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            ({"source": "file", "id": "file_1", "eval_id": "file_2"}, "file_1"),
            ({"source": "parquet", "path": ["/a", "/b"]}, "/a, /b"),
            ({"source": "mixture", "sources": [{"path": "/a"}, {"source": "file", "id": "file_1"}]}, "/a, file_1"),
            ({"source": "images", "path": "/a", "sources": []}, "/a"),
            ({"source": "images", "path": None, "sources": [{"path": "/a"}, {"path": ["/b", "/c"]}]}, "/a, /b, /c"),
            ({"source": "builtin", "name": "digits"}, "digits"),
            ({}, ""),
        ],
    )
    def test_data_of_each_source_is_named(self, data, text):
        assert data_text(data) == text

    @pytest.mark.parametrize(
        ("options", "body"),
        [
            ((), {}),
            (("--checkpoint", "best"), {"checkpoint": "best"}),
            (
                ("--checkpoint", "40", "--alias", "prod", "--alias", "beta"),
                {"checkpoint": 40, "aliases": ["prod", "beta"]},
            ),
            (("--description", "Adds"), {"description": "Adds"}),
        ],
    )
    def test_register_sends_what_is_named(self, run, service, options, body):
        service.on("GET", "/v1/jobs/a1", job("a1"))
        service.on("POST", "/v1/models/chat/versions", VERSION)
        done = run("models", "register", "chat", "a1", *options)
        assert (done.exit_code, done.stdout) == (0, "chat@2\n")
        assert sent(service) == ("POST", "/v1/models/chat/versions", {"job_id": "a1", **body})

    def test_alias_is_moved_or_deleted(self, run, service):
        service.on("PUT", "/v1/models/chat/aliases/prod", MODEL)
        assert run("models", "alias", "chat", "prod", "2").stdout == "chat@prod is version 2\n"
        assert sent(service) == ("PUT", "/v1/models/chat/aliases/prod", {"version": 2})
        service.on("DELETE", "/v1/models/chat/aliases/prod", {})
        assert run("models", "alias", "chat", "prod", "--delete").stdout == "alias chat@prod: deleted\n"
        for arguments in (("chat", "prod"), ("chat", "prod", "2", "--delete")):
            assert run("models", "alias", *arguments).exit_code == 2

    def test_deletion_of_all_versions_is_confirmed_first(self, run, service):
        service.on("DELETE", "/v1/models/chat", {})
        service.on("DELETE", "/v1/models/chat/versions/2", {})
        assert run("models", "delete", "chat", input="n\n").exit_code == 0
        assert not service.requests
        assert run("models", "delete", "chat", "--yes").stdout == "model chat: deleted\n"
        assert run("models", "delete", "chat", "2").stdout == "model version chat@2: deleted\n"

    def test_unknown_model_is_answered_with_the_list_command(self, run, service):
        done = run("models", "show", "chat")
        assert (done.exit_code, service.requests[-1].url.path) == (6, "/v1/models/chat")
        service.on("GET", "/v1/models/x", error(404, "there is no model 'x'", "not_found_error", "model_not_found"))
        assert "list registered models with: trainyard models list" in run("models", "show", "x").stderr
        assert run("models", "show", "a/../b").exit_code == 6


class TestReferences:
    @pytest.mark.parametrize(("reference", "expected"), [("2", 2), ("1", 1), ("prod", 2), ("latest", 2)])
    def test_version_is_a_number_an_alias_or_the_newest(self, reference, expected):
        assert choose_version(ModelDetail.model_validate(MODEL), reference).version == expected

    def test_unknown_version_is_answered_with_those_that_exist(self):
        with pytest.raises(LoadError, match="model 'chat' has no version '3'; it has 2, 1, prod"):
            choose_version(ModelDetail.model_validate(MODEL), "3")
        with pytest.raises(LoadError, match="has no version 'latest'; it has none"):
            choose_version(ModelDetail.model_validate(MODEL | {"versions": [], "aliases": {}}), "latest")

    def fetch(self, service, source, choice=None):
        return fetch_source(service.client(), source, choice or Choice(), lambda request: None)

    def test_job_comes_before_a_model_of_the_same_name(self, service):
        service.on("GET", "/v1/jobs/chat", job("a1", spec={"task": "script"}))
        service.on("GET", "/v1/models/chat", MODEL)
        with pytest.raises(LoadError, match="job a1 of task `script` has no model"):
            self.fetch(service, "chat")

    def test_name_of_a_job_may_contain_an_at_sign(self, service):
        named = job("a1", name="chat@home", spec={"task": "script"})
        service.on("GET", "/v1/jobs", page(named))
        with pytest.raises(LoadError, match="job a1 of task"):
            self.fetch(service, "chat@home")

    def test_unknown_name_is_neither(self, service):
        service.on("GET", "/v1/jobs", page())
        with pytest.raises(NotFoundError, match="and no registered model of this name"):
            self.fetch(service, "chat")

    def test_checkpoint_of_a_version_cannot_be_chosen(self, service):
        service.on("GET", "/v1/models/chat", MODEL)
        with pytest.raises(LoadError, match="a checkpoint can be chosen of a job only"):
            self.fetch(service, "chat@prod", Choice("best"))
