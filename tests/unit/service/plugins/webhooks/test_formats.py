"""Texts of messages for people."""

import json

import pytest

from service.plugins.webhooks.formats import duration, message_body, slack_text

JOB = {"id": "job_1", "name": "digits", "status": "failed", "status_reason": "error", "status_message": "No space."}


def test_event_is_sent_unchanged_unless_a_text_is_requested() -> None:
    assert message_body('{"id":1}', "trainyard", "https://t") == '{"id":1}'
    sent = message_body(json.dumps({"type": "job.status", "job": JOB}), "slack", "https://t/")
    assert json.loads(sent) == {"text": "*digits* failed (error): No space. <https://t/jobs/job_1|job_1>"}


def test_alert_of_a_program_has_its_level_title_and_text() -> None:
    alert = {"level": "warning", "title": "loss <3", "text": "it is high"}
    expected = "*digits* warning: loss &lt;3: it is high <https://t/jobs/job_1|job_1>"
    assert slack_text({"type": "job.alert", "job": JOB, "alert": alert}, "https://t") == expected


def test_excluded_node_has_its_cause_and_a_link() -> None:
    node = {"node": "node2", "until": "2026-01-01T01:00:00Z", "cause": "Slurm could not launch jobs there", "jobs": 2}
    assert slack_text({"type": "cluster.node_excluded", "node": node}, "https://t") == (
        "*node2* excluded until 2026-01-01T01:00:00Z: Slurm could not launch jobs there (2 jobs). "
        "<https://t/cluster|cluster>"
    )


def test_names_make_no_markup_and_no_lines() -> None:
    text = slack_text({"job": {**JOB, "name": "<!here>*\n<http://evil|x>&", "status_message": "x" * 5000}}, "https://t")
    assert text.startswith("*&lt;!here&gt;\u2217 &lt;http://evil|x&gt;&amp;* failed")
    assert len(text) < 1300
    assert slack_text({"type": "test", "webhook_id": "whk_1"}, "https://t") == "Test of a webhook of https://t"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (-5, "0 s"),
        (59.6, "1 min"),
        (62, "1 min 2 s"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (1e6, "11 d 13 h"),
    ],
)
def test_runtimes_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
