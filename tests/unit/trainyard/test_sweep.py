"""`sweep`, `sweeps`, `sweep-cancel` and `compare` on the command line."""

import json

import pytest

from tests.unit.trainyard.fake_service import TIME, job, page
from trainyard.cli import tables
from trainyard.cli.errors import UsageError
from trainyard.cli.sweep import parse_grid
from trainyard.contract.spec.spec_diff import differing_paths, flatten

ID = "swp_01kdvdna00az9cxjnszk8v8abh"


def sweep(counts, **changes):
    members = [
        {"job_id": f"job_{n}", "values": {"optimizer.lr": lr}, "status": "queued"} for n, lr in enumerate((0.1, 0.2))
    ]
    return {
        "object": "sweep",
        "id": ID,
        "name": "rates",
        "created_by": "anna",
        "created_at": TIME,
        "fields": ["optimizer.lr"],
        "size": 2,
        "counts": counts,
        "members": members,
        **changes,
    }


def series(key, *values):
    return {"key": key, "steps": list(range(len(values))), "values": list(values), "times": [TIME] * len(values)}


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("task: regression\noptimizer: {name: adamw, lr: 1.0}\n")
    return str(path)


class TestSweep:
    def test_sweep_sends_spec_grid_and_key(self, run, service, spec):
        service.on("POST", "/v1/sweeps", sweep({"queued": 2}))
        options = [
            "--grid",
            "optimizer.lr=1e-4,3e-4",
            "--grid",
            "lora_rank=8",
            "--max-parallel",
            "2",
            "--set",
            "gpus=4",
        ]
        result = run("sweep", spec, *options)
        assert result.exit_code == 0, result.stderr
        sent = json.loads(service.requests[-1].content)
        assert sent["spec"] == {"task": "regression", "optimizer": {"name": "adamw", "lr": 1.0}, "gpus": 4}
        assert {key: list(map(float, values)) for key, values in sent["grid"].items()} == {
            "optimizer.lr": [1e-4, 3e-4],
            "lora_rank": [8],
        }
        assert sent["max_parallel"] == 2
        assert service.requests[-1].headers["idempotency-key"]
        assert f"sweep {ID} (rates), 2 jobs: http://trainyard.test/compare?sweep={ID}\n" in result.stdout

    def test_sweep_sends_force_and_the_given_key(self, run, service, spec):
        service.on("POST", "/v1/sweeps", sweep({"queued": 2}))
        result = run("sweep", spec, "--grid", "seed=1,2", "--force", "--idempotency-key", "mine")
        assert result.exit_code == 0, result.stderr
        sent = service.requests[-1]
        assert (sent.url.params["force"], sent.headers["idempotency-key"]) == ("true", "mine")

    def test_watch_waits_for_all_and_exits_with_the_worst_code(self, run, service, spec):
        service.on("POST", "/v1/sweeps", sweep({"queued": 2}))
        service.on("GET", f"/v1/sweeps/{ID}", sweep({"running": 1, "queued": 1}), sweep({"succeeded": 1, "failed": 1}))
        result = run("sweep", spec, "--grid", "seed=1,2", "--watch")
        assert result.exit_code == 1
        assert "1 queued, 1 running" in result.stdout
        assert "1 failed, 1 succeeded" in result.stdout

    def test_missing_grid_error_shows_an_example(self, run, spec):
        result = run("sweep", spec)
        assert result.exit_code == 2
        assert "--grid optimizer.lr=1e-4,3e-4" in result.stderr

    @pytest.mark.parametrize("grid", [["seed"], ["=1"], ["a..b=1"], ["seed="], ["seed=1", "seed=2"]])
    def test_invalid_grid_is_rejected(self, grid):
        with pytest.raises(UsageError):
            parse_grid(grid)

    @pytest.mark.parametrize("values", ["1e-4,", "1e-4,,3e-4", ",1e-4", "1e-4, ", " ", "'a,b',"])
    def test_empty_value_is_rejected_with_a_fix(self, run, service, spec, values):
        axis = f"optimizer.lr={values}"
        result = run("sweep", spec, "--grid", axis)
        assert (result.exit_code, service.requests) == (2, [])
        assert result.stderr.endswith("a value is empty; remove the comma, or write '' for an empty string\n")
        assert "--grid optimizer.lr=" in result.stderr

    @pytest.mark.parametrize(
        ("values", "read"),
        [
            ("''", [""]),
            ("a,''", ["a", ""]),
            ('\',,\',"\\",,"', [",,", '",,']),
            ("[1, ],2", [["1"], "2"]),
            ("~", [None]),
        ],
    )
    def test_quoted_empty_string_is_accepted(self, values, read):
        assert parse_grid([f"name={values}"]) == {"name": read}

    def test_one_job_is_counted_as_one(self, run, service, spec):
        service.on("POST", "/v1/sweeps", sweep({"queued": 1}, size=1))
        assert ", 1 job: http" in run("sweep", spec, "--grid", "seed=1").stdout

    def test_values_are_text_where_the_field_is(self):
        assert parse_grid(["metadata.a=1,true,2026-01-01", "seed=1,2"]) == {
            "metadata.a": ["1", "true", "2026-01-01"],
            "seed": [1, 2],
        }

    def test_a_list_can_be_a_value(self):
        assert parse_grid(["lora.targets=[q, k],auto"]) == {"lora.targets": [["q", "k"], "auto"]}

    def test_sweep_is_shown_with_its_jobs(self, run, service):
        service.on("GET", f"/v1/sweeps/{ID}", sweep({"queued": 2}))
        shown = run("sweeps", ID).stdout
        assert "OPTIMIZER.LR" in shown.upper()
        assert "job_1" in shown

    @pytest.mark.parametrize(
        ("metric", "heading"), [("train/loss", "TRAIN LOSS"), ("Loss/train", "TRAIN LOSS"), ("eval/loss", "eval/loss")]
    )
    def test_training_loss_is_called_as_in_the_table_of_jobs(self, run, service, metric, heading):
        members = [{"job_id": "job_1", "values": {}, "value": 0.5, "rank": 1, "loss_metric": "Loss/train"}]
        service.on("GET", f"/v1/sweeps/{ID}", sweep({"succeeded": 1}, members=members, metric=metric))
        assert run("sweeps", ID).stdout.splitlines()[3].endswith(f"STEP  {heading}")

    def test_cancel_last_cancels_the_newest_sweep(self, run, service):
        service.on("GET", "/v1/sweeps", page(sweep({"queued": 2})))
        service.on("GET", f"/v1/sweeps/{ID}", sweep({"queued": 2}))
        service.on("POST", f"/v1/sweeps/{ID}/cancel", sweep({"queued": 2}))
        assert run("sweep-cancel", "last").exit_code == 0
        assert service.requests[-1].method == "POST"

    @pytest.mark.parametrize(
        ("counts", "ended"),
        [({"failed": 2}, "2 failed"), ({"cancelled": 1, "succeeded": 1}, "1 cancelled, 1 succeeded")],
    )
    def test_cancel_of_an_ended_sweep_is_an_error(self, run, service, counts, ended):
        service.on("GET", f"/v1/sweeps/{ID}", sweep(counts))
        result = run("sweep-cancel", ID)
        line = f"error: sweep {ID} has already ended ({ended}); there is nothing to cancel\n"
        assert (result.stderr, result.exit_code, result.stdout) == (line, 7, "")
        assert json.loads(run("sweep-cancel", ID, "--json").stderr)["error"]["code"] == "sweep_finished"


class TestCompare:
    def test_only_differing_fields_are_shown(self, run, service):
        for n, lr in ((1, 0.5), (2, 0.25)):
            resource = job(f"job_{n}aaa", name="x", spec={"seed": 7, "optimizer": {"name": "sgd", "lr": lr}})
            service.on("GET", f"/v1/jobs/job_{n}aaa", resource)
        curves = [{"job_id": f"job_{n}aaa", "series": [series("train/loss", 3.0, n / 10)]} for n in (1, 2)]
        service.on("GET", "/v1/metrics", {"object": "list", "data": curves})
        result = run("compare", "job_1aaa", "job_2aaa")
        assert result.exit_code == 0, result.stderr
        for there in ("optimizer.lr", "0.5", "0.25", "train/loss", "█"):
            assert there in result.stdout
        for not_there in ("seed", "optimizer.name"):
            assert not_there not in result.stdout

    def test_fields_too_wide_for_the_table_are_printed_above_it(self, run, service, monkeypatch):
        monkeypatch.setattr(tables, "console", lambda: tables.TerminalConsole(width=80, markup=False))
        ids = [f"job_{'0' * 25}{n}" for n in (1, 2)]
        for n, id_ in enumerate(ids):
            spec = {f"a_field_of_length_{m}": f"value-{m}-of-{n}" for m in range(9)}
            service.on("GET", f"/v1/jobs/{id_}", job(id_, status="succeeded", spec=spec))
        curves = [{"job_id": id_, "series": [series("train/loss", 3.0, 0.5)]} for id_ in ids]
        service.on("GET", "/v1/metrics", {"object": "list", "data": curves})
        lines = run("compare", *ids).stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert [line.split() for line in lines if "a_field_of_length_8" in line] == [
            ["a_field_of_length_8", ids[0], "value-8-of-0"]
        ]
        results = [line.split() for line in lines if "succeeded" in line]
        assert [result[:3] for result in results] == [[id_, "succeeded", "0.5"] for id_ in ids]

    def test_a_sweep_is_compared_in_the_order_of_its_members(self, run, service):
        service.on("GET", f"/v1/sweeps/{ID}", sweep({"queued": 2}))
        service.on("GET", "/v1/jobs", page(job("job_1", spec={"seed": 2}), job("job_0", spec={"seed": 1})))
        none = [{"job_id": f"job_{n}", "series": []} for n in (0, 1)]
        service.on("GET", "/v1/metrics", {"object": "list", "data": none})
        result = run("compare", "--sweep", ID, "--json")
        assert [json.loads(line)["differs"] for line in result.stdout.splitlines()] == [{"seed": 1}, {"seed": 2}]

    def test_most_common_metric_is_the_default(self, run, service):
        both = [[series("train/loss", 3.0, 0.1), series("eval/loss", 4.0, 0.2)], [series("train/loss", 3.0, 0.3)]]
        for n in (0, 1):
            service.on("GET", f"/v1/jobs/job_{n}aaa", job(f"job_{n}aaa"))
        curves = [{"job_id": f"job_{n}aaa", "series": series} for n, series in enumerate(both)]
        service.on("GET", "/v1/metrics", {"object": "list", "data": curves})
        assert run("compare", "job_0aaa", "job_1aaa").stdout.startswith("train/loss\n")

    def test_unknown_metric_error_lists_the_metrics(self, run, service):
        for n in (1, 2):
            resource = job(f"job_{n}aaa", status="succeeded", metrics={"train/loss": 0.5, f"own/{n}": 1.0})
            service.on("GET", f"/v1/jobs/job_{n}aaa", resource)
        service.on("GET", "/v1/metrics", {"object": "list", "data": [{"job_id": "x", "series": []}] * 2})
        result = run("compare", "job_1aaa", "job_2aaa", "--key", "loss")
        assert result.exit_code == 6
        assert result.stderr == "error: no metrics named loss; there are: own/1, own/2, train/loss\n"

    def test_compare_needs_jobs_or_a_sweep(self, run):
        assert run("compare").exit_code == 2

    def test_field_of_only_one_job_differs(self):
        specs = [flatten({"a": 1, "lora": {"rank": 8}}), flatten({"a": 1})]
        assert differing_paths(specs) == ["lora.rank"]


class TestSearch:
    def test_search_sends_typed_ranges_and_limits(self, run, service, spec):
        service.on("POST", "/v1/sweeps", sweep({}, size=0, state="running"))
        ranges = [
            "--param",
            "optimizer.lr=log:1e-5:1e-1",
            "--param",
            "lora_rank=choice:4,8",
            "--param",
            "name=choice:1,2",
        ]
        limits = ["--metric", "eval/loss", "--max-trials", "30", "--max-parallel", "4"]
        result = run("sweep", spec, "--search", "asha", *ranges, *limits)
        assert result.exit_code == 0, result.stderr
        sent = json.loads(service.requests[-1].content)
        assert "grid" not in sent
        assert sent["max_parallel"] == 4
        assert sent["search"] == {
            "algorithm": "asha",
            "space": {
                "optimizer.lr": {"type": "float", "low": 1e-5, "high": 0.1, "log": True},
                "lora_rank": {"type": "choice", "values": [4, 8]},
                "name": {"type": "choice", "values": ["1", "2"]},
            },
            "metric": "eval/loss",
            "max_trials": 30,
        }

    @pytest.mark.parametrize(
        "options",
        [
            ["--search", "tpe"],
            ["--max-trials", "3"],
            ["--param", "optimizer.lr=0.1"],
            ["--param", "a=int:1:2", "--param", "a=int:1:2"],
            ["--param", "a=int:1:2", "--grid", "seed=1"],
        ],
    )
    def test_incomplete_searches_are_rejected(self, run, service, spec, options):
        assert (run("sweep", spec, *options).exit_code, service.requests) == (2, [])

    def test_a_list_of_values_is_proposed_as_a_grid(self, run, spec):
        done = run("sweep", spec, "--param", "optimizer.lr=1e-4,1e-3")
        assert done.exit_code == 2
        assert "To run each of these values: --grid optimizer.lr=1e-4,1e-3" in done.stderr

    def test_watch_waits_while_members_are_proposed_and_names_the_best(self, run, service, spec):
        best = {"job_id": "job_1", "values": {"optimizer.lr": 0.01}, "status": "succeeded", "value": 0.25, "rank": 1}
        done = sweep({"succeeded": 1}, state="finished", members=[best], metric="eval/loss", best="job_1")
        service.on("POST", "/v1/sweeps", sweep({}, state="running"))
        service.on("GET", f"/v1/sweeps/{ID}", sweep({"succeeded": 1}, state="running"), done)
        result = run("sweep", spec, "--search", "tpe", "--param", "optimizer.lr=log:1e-5:1e-1", "--watch")
        assert result.exit_code == 0, result.stderr
        assert "best: job_1: eval/loss 0.25 with optimizer.lr=0.01" in result.stdout

    def test_numbers_of_a_grid_are_numbers(self):
        assert parse_grid(["optimizer.lr=1e-2,3e-3"]) == {"optimizer.lr": [0.01, 0.003]}
        assert parse_grid(["name=1e-2,2"]) == {"name": ["1e-2", "2"]}
        assert parse_grid(["optimizer.lr='1e-2'"]) == {"optimizer.lr": ["1e-2"]}

    def test_failed_members_are_retried(self, run, service):
        members = [
            {"job_id": f"job_{n}", "values": {}, "status": status} for n, status in enumerate(["failed", "succeeded"])
        ]
        service.on("GET", f"/v1/sweeps/{ID}", sweep({"failed": 1, "succeeded": 1}, members=members))
        service.on("GET", "/v1/jobs/job_0", job("job_0", status="failed"))
        service.on("POST", "/v1/jobs/job_0/retry", job("job_0", status="queued"))
        result = run("retry", "--sweep", ID, "--failed")
        assert result.exit_code == 0, result.stderr
        assert [request.url.path for request in service.requests if request.method == "POST"] == [
            "/v1/jobs/job_0/retry"
        ]
        assert run("retry", "--sweep", ID).exit_code == 2
        assert run("retry").exit_code == 2
