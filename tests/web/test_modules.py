"""Functions of the scripts that format and choose what pages show."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from playwright.sync_api import Page

from service.web.assets import Assets
from tests.support.browser import Visit
from tests.support.runtimes import NOW, RUNTIMES
from tests.unit.contract.test_terminal_text import PROGRAM_TEXTS
from trainyard.contract.evaluation_metric import HIGHER_IS_BETTER, is_higher_better
from trainyard.contract.wire.jobs import TERMINAL, JobStatus

pytestmark = [pytest.mark.web]

NOTHING = "–"  # noqa: RUF001
Call = Callable[..., Any]

JOB: dict[str, Any] = {
    "status": "running",
    "status_message": "running on node1",
    "started_at": None,
    "finished_at": None,
    "progress": None,
    "attempt": None,
    "metrics": {},
    "last_checkpoint_step": None,
    "spec": {"gpus": 2, "strategy": "fsdp", "precision": "bf16", "lora_rank": 8},
    "disk_bytes": None,
}


def test_numbers_have_four_significant_digits(module: Callable[[str], Call]) -> None:
    cases = {
        0.0: "0", 0.123456: "0.1235", 12.0: "12", 100: "100", 123456.0: "123456", 2.5e-5: "2.5e-5", 3e9: "3e9",
        1 / 3: "0.3333", 0.001: "0.001", 0.00099: "9.9e-4", 12.345678: "12.35", 999.95: "1000", 999999: "999999",
        1e6: "1e6", 1.5e-7: "1.5e-7", -0.02: "-0.02", -4e9: "-4e9",
    }  # fmt: skip
    number = module("format.js")
    assert {value: number("number", value) for value in cases} == cases
    values = [None, math.nan, -math.inf, "NaN", "Infinity", "-Infinity"]
    assert [number("number", value) for value in values] == [NOTHING, "NaN", "-∞", "NaN", "∞", "-∞"]


def test_durations_have_two_units(module: Callable[[str], Call]) -> None:
    cases = {
        0: "0 ms", 0.0004: "0 ms", 0.0123: "12 ms", 0.5: "500 ms", 1: "1 s", 2.345: "2.3 s", 10: "10 s", 59: "59 s",
        59.6: "1 min", 75: "1 min 15 s", 3599: "59 min 59 s", 3600: "1 h", 3660: "1 h 1 min", 12000: "3 h 20 min",
        86399: "23 h 59 min", 86400: "1 d", 90000: "1 d 1 h", 1e7: "115 d 17 h",
    }  # fmt: skip
    duration = module("format.js")
    assert {value: duration("duration", value) for value in cases} == cases
    assert [duration("duration", value) for value in (None, math.nan)] == [NOTHING, NOTHING]


def test_sizes_counts_and_spec_values_are_formatted(module: Callable[[str], Call]) -> None:
    formats = module("format.js")
    sizes = [formats("bytes", value) for value in (None, 12, 1500, 2_340_000, 7e12)]
    assert sizes == [NOTHING, "12 B", "1.46 KiB", "2.23 MiB", "6.37 TiB"]
    assert formats("count", 1234567) == "1\u202f234\u202f567"
    values = [formats("specValue", value) for value in (None, True, "auto", 3, 1e-4, [0.9, 0.95])]
    assert values == [NOTHING, "true", "auto", "3", "1e-4", "[0.9, 0.95]"]


def test_each_status_has_a_tone(module: Callable[[str], Call]) -> None:
    assert set(module("job_status.js")("TONES")) == set(get_args(JobStatus))
    assert set(module("job_status.js")("TERMINAL")) == set(TERMINAL)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "Running on node1 (no steps yet)."),
        ({"spec": {"task": "script"}}, "Running on node1."),
        (
            {"progress": {"step": 1200, "total_steps": 4000, "eta_seconds": 75.0}},
            "Running on node1: step 1\u202f200 of 4\u202f000, about 1 min 15 s left.",
        ),
        (
            {
                "progress": {
                    "step": 400,
                    "total_steps": 400,
                    "eta_seconds": 41.0,
                    "phase": "evaluating",
                    "phase_done": 120,
                    "phase_total": 800,
                }
            },
            "Running on node1: step 400 of 400; evaluating 120 of 800, about 41 s left.",
        ),
        ({"spec": {"task": "script"}, "progress": {"step": 39, "total_steps": None}}, "Running on node1: step 39."),
        ({"status": "pending", "status_message": "waiting for 2 of 2 local slots"}, "Waiting for 2 of 2 local slots."),
        ({"status": "queued", "status_message": ""}, "Queued."),
        ({"status": "succeeded", "status_message": "Completed all steps."}, "Completed all steps."),
    ],
)
def test_job_summary_has_progress_or_the_reason_to_wait(
    module: Callable[[str], Call], changes: dict[str, Any], text: str
) -> None:
    assert module("job_summary.js")("summary", {**JOB, **changes}) == text


def test_job_facts_have_runtime_and_strategy(module: Callable[[str], Call]) -> None:
    def facts(**changes: Any) -> dict[str, str]:
        summary, job = module("job_summary.js"), {**JOB, **changes}
        return {id: value for id, _, value in summary("headlineOf", job) + summary("factsOf", job)}

    times = {"started_at": "2026-01-01T12:00:00Z", "finished_at": "2026-01-01T13:30:00Z"}
    assert facts(**times)["runtime"] == "1 h 30 min"
    assert facts()["runtime"] == NOTHING
    assert facts()["strategy"] == "fsdp · bf16 · LoRA 8"
    assert facts(metrics={"train/loss": "NaN"}, progress={"step": 1, "total_steps": 4})["loss"] == "NaN"


def test_runtime_is_that_of_the_command_line(new_tab: Visit) -> None:
    new_tab.go("/jobs")
    new_tab.page.clock.set_fixed_time(NOW)
    call = "async ([url, jobs]) => { const { runtimeOf } = await import(url); return jobs.map(runtimeOf); }"
    jobs = [{"started_at": started, "finished_at": finished} for started, finished, _ in RUNTIMES]
    shown = new_tab.page.evaluate(call, [Assets().url("job_rows.js"), jobs])
    assert shown == [seconds for _, _, seconds in RUNTIMES]


def test_the_loss_has_the_name_that_the_program_gave_it(module: Callable[[str], Call]) -> None:
    rows, own = module("job_rows.js"), {"metrics": {"Loss/train": 2.5}, "loss_metric": "Loss/train"}
    assert [rows("lossOf", job) for job in (own, {"metrics": {"train/loss": 1.5}}, {"metrics": {}})] == [2.5, 1.5, None]
    assert rows("rowFields", {**JOB, **own})["metrics"] == {"train/loss": 2.5}
    assert [rows("shownName", metric, [own]) for metric in ("train/loss", "Loss/train", "eval/loss")] == [
        "Train loss",
        "Train loss",
        "eval/loss",
    ]


def test_fraction_done_of_a_job_without_steps_is_zero(module: Callable[[str], Call]) -> None:
    rows = module("job_rows.js")
    assert rows("fractionDone", {"progress": {"step": 0, "total_steps": 0}}) == 0
    assert rows("fractionDone", {"progress": {"step": 39, "total_steps": None}}) == 0
    assert rows("fractionDone", {"progress": None}) == 0
    assert rows("fractionDone", {"progress": {"step": 1, "total_steps": 4}}) == 0.25


def test_row_shows_the_status_message_until_there_is_progress(script_tab: Page) -> None:
    job = {**JOB, "id": "job_1", "name": "one", "created_by": "ada", "created_at": "2026-01-01T12:00:00Z", "tags": {}}
    fill = """async ([rowsUrl, columnsUrl, job]) => {
      const { TableRows } = await import(rowsUrl);
      const { columnOf } = await import(columnsUrl);
      const none = () => null;
      const context = { selected: new Set(), note: none, sweep: none, curve: none, colour: none };
      const rows = new TableRows({ ...context, job: () => job });
      rows.use(["status", "name", "progress", "loss"].map(columnOf));
      const row = rows.create(job.id);
      rows.fill(row, job.id);
      const text = (selector) => row.querySelector(selector).textContent;
      return [text(".progress .message"), row.querySelector(".bar").hidden, text(".steps"), text(".loss .value")];
    }"""
    address = [Assets().url("table_rows.js"), Assets().url("table_columns.js")]
    waiting = {**job, "status": "pending", "status_message": "behind another"}
    assert script_tab.evaluate(fill, [*address, waiting]) == ["behind another", True, "", ""]
    training = {**job, "progress": {"step": 1, "total_steps": 4}, "metrics": {"train/loss": "NaN"}}
    assert script_tab.evaluate(fill, [*address, training]) == ["", False, "1 / 4", "NaN"]
    ended = {**training, "status": "succeeded"}
    assert script_tab.evaluate(fill, [*address, ended]) == ["", True, "1 / 4", "NaN"]
    failed = {**training, "status": "failed", "status_message": "rank 0: KeyError: 'a'", "cause": "KeyError: 'a'"}
    assert script_tab.evaluate(fill, [*address, failed]) == ["KeyError: 'a'", True, "", "NaN"], (
        "its room is for the cause"
    )


@pytest.mark.parametrize(
    "word", [*HIGHER_IS_BETTER, "loss", "error", "acc@1", "val_f1", "valAcc", "accuracy_loss", "x"]
)
def test_the_better_values_are_those_of_the_service(module: Callable[[str], Call], word: str) -> None:
    direction = module("metric_direction.js")
    for name in (word, f"eval/{word}", f"{word}_at_1"):
        assert direction("isHigherBetter", name) is is_higher_better(name)
    assert direction("isBestDescending", f"best(eval/{word})") is is_higher_better(word)
    assert direction("isBestDescending", f"best_step(eval/{word})") is False


def test_failure_title_names_the_rank_that_failed_first(module: Callable[[str], Call]) -> None:
    title = module("job_failure.js")
    assert title("failureTitle", {"rank": 3, "host": "node2"}) == "First failure: rank 3 on node2"
    assert title("failureTitle", {"rank": None, "host": None}) == "Failed"


def test_log_lines_have_no_escapes_and_only_what_was_written_last(module: Callable[[str], Call]) -> None:
    clean = module("log_lines.js")
    assert clean("cleanLines", "a\r\n\x1b[31mred\x1b[0m\n10%\r20%\r") == ["a", "red", "20%\r"]
    for text, expected in PROGRAM_TEXTS.items():
        assert "\n".join(line.rstrip("\r") for line in clean("cleanLines", text)) == expected
    assert clean("cleanLines", "\n" + "x" * 4000) == ["", "x" * 4000]
    assert clean("cleanLines", "x" * 4001)[0].startswith("x" * 4000 + " … [line cut after 4000 characters;")


SECONDS_OF = """async ([url, name, text]) => {
  const { [name]: exported } = await import(url);
  const started = performance.now();
  exported(text);
  return (performance.now() - started) / 1000;
}"""


@pytest.mark.parametrize(
    ("script", "export", "unit", "end"),
    [
        *[
            ("log_lines.js", "cleanLines", unit, "")
            for unit in ("x", "\r", "\x1b", "\x1b]", "\x1b[", "x\r", "0 \x1b]x")
        ],
        ("yaml_fields.js", "fieldsOf", " ", "x"),
        ("yaml_fields.js", "fieldsOf", " #", "\u2028"),
    ],
)
def test_hostile_text_takes_linear_time(script_tab: Page, script: str, export: str, unit: str, end: str) -> None:
    text = "a" + unit * 200_000 + end
    assert script_tab.evaluate(SECONDS_OF, [Assets().url(script), export, text]) < 5


def titles(module: Callable[[str], Call], spec: dict[str, object], keys: list[str]) -> list[str]:
    return [chart["title"] for chart in module("chart_list.js")("chartsOf", spec, keys)]


def test_training_has_standard_charts_before_its_first_point(module: Callable[[str], Call]) -> None:
    assert titles(module, {"task": "causal_lm", "gpus": 1}, []) == [
        "Loss", "Learning rate", "Gradient norm", "Throughput", "Memory", "Step time",
    ]  # fmt: skip


def test_throughput_is_in_tokens_if_the_task_has_tokens(module: Callable[[str], Call]) -> None:
    units = {
        task: module("chart_list.js")("chartsOf", {"task": task}, [])[3]["unit"] for task in ("causal_lm", "regression")
    }
    assert units == {"causal_lm": "tokens/s", "regression": "examples/s"}


def test_time_per_rank_is_charted_for_2_to_64_gpus(module: Callable[[str], Call]) -> None:
    assert "Time per rank" in titles(module, {"task": "regression", "gpus": 2}, [])
    assert "Time per rank" not in titles(module, {"task": "regression", "gpus": 65}, [])


def test_each_other_metric_has_its_own_chart(module: Callable[[str], Call]) -> None:
    keys = ["train/loss", "eval/accuracy", "perf/mfu", "perf/rank_spread_seconds", "perf/rank_seconds/0"]
    assert titles(module, {"task": "regression", "gpus": 2}, keys)[-2:] == ["eval/accuracy", "perf/mfu"]


def test_losses_of_evaluation_sets_share_a_chart(module: Callable[[str], Call]) -> None:
    keys = ["train/loss", "eval/loss", "eval/loss/books", "eval/loss/code"]
    charts = module("chart_list.js")("chartsOf", {"task": "causal_lm"}, keys)
    assert [(chart["title"], chart["keys"] or chart["prefix"]) for chart in charts[:2]] == [
        ("Loss", ["train/loss", "eval/loss"]), ("Loss by evaluation set", "eval/loss/"),
    ]  # fmt: skip
    assert len(charts) == len(titles(module, {"task": "causal_lm"}, keys[:2])) + 1


def test_script_has_charts_only_for_its_metrics(module: Callable[[str], Call]) -> None:
    assert titles(module, {"task": "script"}, ["mine", "train/loss"]) == ["Loss", "mine"]
    assert titles(module, {"task": "script"}, []) == []


def test_line_fills_its_box(module: Callable[[str], Call]) -> None:
    line = module("curve_preview.js")
    box = {"left": 56, "right": 632, "top": 8, "bottom": 210}
    assert line("linePath", [[0, 2.0], [10, 1.0]], box) == "M56.0 8.0L632.0 210.0"
    assert line("linePath", [[0, 3.0], [1, 3.0]], box) == "M56.0 109.0L632.0 109.0"
    assert line("sparklinePath", [1.0, "NaN", 2.0]) == "M1.0 18.0L79.0 2.0"
    assert line("sparklinePath", [1.0]) == ""


def test_times_of_day_are_local_and_in_the_past(module: Callable[[str], Call]) -> None:
    time_in = module("log_lines.js")
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000  # 13:00 where the browser is
    for text, expected in {
        "12:30": datetime(2026, 1, 31, 11, 30, tzinfo=UTC),
        "14:05:09": datetime(2026, 1, 30, 13, 5, 9, tzinfo=UTC),
        "2026-01-02 14:05": datetime(2026, 1, 2, 13, 5, tzinfo=UTC),
        "2026-01-02T14:05Z": datetime(2026, 1, 2, 14, 5, tzinfo=UTC),
    }.items():
        assert time_in("timeIn", text, noon).astimezone(UTC) == expected
    assert [time_in("timeIn", text, noon) for text in ("soon", "", "2026-99-99", "1234")] == [None] * 4


def test_lines_of_a_stream_continue_the_last_one(module: Callable[[str], Call]) -> None:
    continued = module("log_lines.js")
    open_line = {"offset": 10, "raw": "ab", "text": "ab"}
    got = continued("continuedLines", open_line, 12, "ü\ncd")
    assert got["replaces"] is True
    assert [(line["offset"], line["text"]) for line in got["lines"]] == [(10, "abü"), (15, "cd")]
    got = continued("continuedLines", {**open_line, "raw": "ab\n"}, 13, "x\n\ny\n")
    assert got["replaces"] is False
    assert [(line["offset"], line["text"]) for line in got["lines"]] == [(13, "x"), (15, ""), (16, "y")]


def test_a_grouping_has_several_keys_which_may_contain_commas(module: Callable[[str], Call]) -> None:
    view = module("table_view.js")
    assert view("groupKeys", "") == []
    both = view("toggledGroup", view("toggledGroup", "", "optimizer.lr"), "tags.a,b")
    assert view("groupKeys", both) == ["optimizer.lr", "tags.a,b"]
    assert view("toggledGroup", both, "optimizer.lr") == "tags.a,,b"


def test_groups_show_mean_and_sample_deviation(module: Callable[[str], Call]) -> None:
    groups = module("job_groups.js")
    assert groups("groupText", [1, 2, 3]) == "2 ±\N{NO-BREAK SPACE}1"
    assert groups("groupText", [0.5, 0.5]) == groups("groupText", [0.5, 0.5, None]) == "0.5"
    assert groups("groupText", [0.5, None, "NaN"]) == "0.5"
    assert groups("groupText", ["a", "b"]) == "2 values"
    assert groups("groupText", [None, None]) == ""
    assert groups("groupTitle", [1, 2, None]) == (
        "1.5 ±\N{NO-BREAK SPACE}0.70710678: mean ± sample standard deviation of 2 of 3 jobs"
    )
    assert groups("groupTitle", ["a", "b"]) == "Different values of 2 jobs"
    assert groups("groupTitle", [1, 1]) == "1: the value of 2 jobs"
    assert groups("isAveraged", [1, 1]) is False


def test_ticks_whose_labels_would_overlap_are_left_out(module: Callable[[str], Call]) -> None:
    axes = module("chart_axes.js")
    ticks = [[0, "a"], [0.5, "b"], [0.9, "c"], [1, "d"]]
    assert axes("apart", ticks, 300, 64) == [[0, "a"], [1, "d"], [0.5, "b"]]
    assert axes("apart", ticks, 900, 64) == [[0, "a"], [1, "d"], [0.5, "b"], [0.9, "c"]]
    assert axes("apart", [[0.5, "only"]], 300, 64) == [[0.5, "only"]]


def test_corrections_replace_the_unknown_name(module: Callable[[str], Call]) -> None:
    correct = module("query_completion.js")
    message = "no job has `los`; did you mean `eval/loss` or `loss (val)`? (column 9)"
    assert correct("corrections", message, "los = 1, los < 1") == [
        {"name": "eval/loss", "text": "los = 1, eval/loss < 1"},
        {"name": "loss (val)", "text": "los = 1, `loss (val)` < 1"},
    ]
    quoted = "no job has `los`; did you mean `loss`? (column 1)"
    assert correct("corrections", quoted, "`los` < 1") == [{"name": "loss", "text": "loss < 1"}]
    part = "no status is `stat`; did you mean `starting`? (column 1)"
    assert correct("corrections", part, "status = stat") == [{"name": "starting", "text": "status = starting"}]
    within = "no status is `finished`; did you mean `succeeded`? (column 1)"
    assert correct("corrections", within, "status in ('finished')")[0]["text"] == "status in ('succeeded')"
    assert correct("corrections", "no status is `x`; there are a, b (column 1)", "status = x") == []
    assert correct("corrections", message, "seed = 1") == []


def test_completions_follow_the_position_in_the_query(module: Callable[[str], Call]) -> None:
    complete = module("query_completion.js")
    keys = [
        {"key": "status", "kind": "column", "description": "Status"},
        {"key": "optimizer.lr", "kind": "spec", "description": None},
        {"key": "loss (val)", "kind": "metric", "description": None},
        {"key": "tags.base line", "kind": "tag", "description": None},
    ]

    def texts(query: str) -> list[str]:
        return [option["text"] for option in complete("completions", query, len(query), keys)["options"]]

    assert texts("")[:3] == ["diverged = true and age < 7d", "status = failed and age < 1d", "status "]
    assert texts("diverg") == ["diverged = true and age < 7d"]
    assert texts("diverged = ") == ["true ", "false "]
    assert texts("seed = 1 and diverg") == []
    assert texts("lr") == ["optimizer.lr "]
    assert texts("val") == ["`loss (val)` "]
    assert texts("zzz") == []
    assert texts("los") == ["`loss (val)` "]
    assert texts("optimizer.lr ")[:2] == ["= ", "!= "]
    assert texts("optimizer.lr < 3 ") == ["and ", "or "]
    assert texts("loss i") == ["is "]
    assert texts("loss is ") == ["nan ", "inf ", "empty ", "not "]
    assert texts("loss is not e") == ["empty "]
    assert texts("loss is not empty ") == ["and ", "or "]
    assert texts("status = fai") == ["failed "]
    assert texts("tag = ") == ['"base line" ']
    assert texts("seed = 1 and min(") == ["`loss (val)`) "]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, "text"),
        ({"type": "string", "format": "date-time"}, "date-time"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer or null"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Point"}}, "list of Point"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
        ({"enum": ["a", 1]}, '"a" or 1'),
        ({"const": False}, "false"),
        ({}, "any"),
    ],
)
def test_types_of_the_api_are_stated_as_text(module: Callable[[str], Call], schema: Any, text: str) -> None:
    assert module("api_reference.js")("typeText", schema) == text


def test_versions_of_a_model_show_the_same_metrics(module: Callable[[str], Call]) -> None:
    call = module("model_versions.js")
    versions = [
        {"metrics": {"train/grad_norm": 1, "train/loss": 2}},
        {"metrics": {"train/loss": 1, "eval/accuracy": 3}},
    ]
    assert call("shownMetrics", versions) == ["train/loss", "eval/accuracy", "train/grad_norm"]
    assert call("shownMetrics", []) == []


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"source": "file", "id": "file_1"}, "file_1"),
        ({"path": ["/a", "/b"]}, "/a, /b"),
        ({"sources": [{"path": "/a"}, {"id": "file_1"}, {"name": "digits"}]}, "/a, file_1, digits"),
        ({}, ""),
        (None, ""),
    ],
)
def test_data_of_a_model_are_named(module: Callable[[str], Call], data: Any, text: str) -> None:
    assert module("model_versions.js")("dataText", data) == text


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("set `a.b` to 1", "set <code>a.b</code> to 1"),
        ("`<b>` and `c`", "<code>&lt;b&gt;</code> and <code>c</code>"),
        ("one ` alone", "one ` alone"),
        ("none", "none"),
    ],
)
def test_code_in_messages_is_marked(script_tab: Page, message: str, expected: str) -> None:
    script = """async ([url, text]) => {
      const box = document.createElement("p");
      (await import(url)).setMessage(box, text);
      return box.innerHTML;
    }"""
    assert script_tab.evaluate(script, [Assets().url("page.js"), message]) == expected


def test_a_run_of_unknown_length_has_no_positions_in_epochs(script_tab: Page) -> None:
    script = """async (url) => {
      const { Charts } = await import(url);
      const position = (total_steps) =>
        Charts.prototype.epochOf.call({ job: { progress: { total_steps }, spec: { epochs: 4 } } });
      return [position(100)(50), position(null) === null];
    }"""
    assert script_tab.evaluate(script, Assets().url("charts.js")) == [2, True]


def test_charts_are_drawn_on_after_the_next_one_to_draw_is_removed(script_tab: Page) -> None:
    script = """async (url) => {
      const { ChartGrid } = await import(url);
      const chart = (id) => ({ id, title: id, keys: [id], prefix: "", unit: "", note: "", section: "A" });
      let charts = [chart("a"), chart("b")];
      const frame = document.createElement("div");
      const root = document.createElement("div");
      frame.append(root);
      document.body.append(frame);
      const view = { search: "", pins: [], logs: [], toggled: [], combined: [] };
      const grid = new ChartGrid(root, view, { charts: () => charts });
      const drawn = [];
      grid.setVisible = () => {};
      grid.visible = new Set(["a", "b"]);
      await new Promise((resolve) => {
        grid.draw = ({ definition }) => {
          drawn.push(definition.id);
          charts = [chart("a")];
          grid.refresh();
          if (drawn.length === 1) grid.redraw();
          else resolve();
        };
        setTimeout(resolve, 5000);
      });
      frame.remove();
      return drawn;
    }"""
    assert script_tab.evaluate(script, Assets().url("chart_grid.js")) == ["a", "a"]


def test_a_column_may_be_named_as_a_property_of_objects(script_tab: Page) -> None:
    script = """async (url) => {
      const { columnOf, keysOfColumns } = await import(url);
      return [columnOf("constructor").label, keysOfColumns(["constructor", "status"])];
    }"""
    assert script_tab.evaluate(script, Assets().url("table_columns.js")) == ["constructor", ["constructor"]]


def test_a_missing_element_of_a_page_is_named(script_tab: Page) -> None:
    script = """async (url) => {
      const { byId, maybeById } = await import(url);
      const message = (...request) => { try { byId(...request); } catch (error) { return error.message; } };
      return [message("nowhere"), message("theme", HTMLInputElement), maybeById("nowhere"), byId("theme").id];
    }"""
    assert script_tab.evaluate(script, Assets().url("page.js")) == [
        "The page has no HTMLElement #nowhere.",
        "The page has no HTMLInputElement #theme.",
        None,
        "theme",
    ]
