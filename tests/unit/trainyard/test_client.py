"""The client: requests, responses, retries and errors."""

import asyncio
import json
from datetime import UTC, date, datetime

import httpx
import pytest

from tests.unit.trainyard.fake_service import TIME, attempt, csv, error, job, log, page
from trainyard.client import (
    AuthenticationError,
    ConflictError,
    ConnectionFailedError,
    ForeignAnswerError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitedError,
    ServerError,
    WaitTimeoutError,
)
from trainyard.client.code_archive import pack
from trainyard.client.errors import connection_failed, error_of
from trainyard.client.retry import ATTEMPTS
from trainyard.contract.spec.training_spec import parse_spec

SPEC = {
    "task": "regression",
    "steps": 3,
    "model": {"name": "mlp"},
    "data": {"source": "builtin", "name": "parity"},
}


_CYCLIC: dict[str, object] = {}
_CYCLIC["a"] = [_CYCLIC]


OTHER = {"Server": "other"}


class TestDelete:
    PATH = "/v1/jobs/01JOBAAAA"

    def test_not_found_after_a_lost_answer_counts_as_deleted(self, service):
        service.on("DELETE", self.PATH, httpx.ReadError("cut"), error(404, "there is no job", code="job_not_found"))
        service.client().delete("01JOBAAAA")
        assert len(service.requests) == 2

    def test_deleting_an_unknown_job_is_an_error(self, service):
        service.on("DELETE", self.PATH, error(404, "there is no job", code="job_not_found"))
        with pytest.raises(NotFoundError, match="there is no job"):
            service.client().delete("01JOBAAAA")

    def test_async_client_behaves_the_same(self, service):
        service.on("DELETE", self.PATH, httpx.ReadError("cut"), error(404, "there is no job", code="job_not_found"))
        asyncio.run(service.async_client().delete("01JOBAAAA"))
        assert len(service.requests) == 2


class TestSubmit:
    def test_mapping_is_sent_as_json_with_key_and_token(self, service):
        service.on("POST", "/v1/jobs", httpx.Response(201, json=job()))
        assert service.client().submit(SPEC).id == "01JOBAAAA"
        sent = service.requests[0]
        assert json.loads(sent.content) == SPEC
        assert sent.headers["content-type"] == "application/json"
        assert sent.headers["authorization"] == "Bearer secret"
        assert len(sent.headers["idempotency-key"]) == 36

    def test_yaml_text_is_sent_as_yaml(self, service):
        service.on("POST", "/v1/jobs", job())
        service.client().submit("task: regression\n")
        assert service.requests[0].content == b"task: regression\n"
        assert service.requests[0].headers["content-type"] == "application/yaml"

    def test_training_spec_is_sent_with_all_defaults(self, service):
        service.on("POST", "/v1/jobs", job())
        spec = parse_spec(SPEC)
        service.client().submit(spec)
        sent = json.loads(service.requests[0].content)
        assert sent["batch"]["size"] == 32
        assert parse_spec(sent) == spec

    def test_retries_reuse_the_idempotency_key(self, service):
        service.on("POST", "/v1/jobs", httpx.ReadTimeout("slow"), error(503, "starting"), httpx.ReadError("cut"), job())
        service.client().submit(SPEC)
        keys = {request.headers["idempotency-key"] for request in service.requests}
        assert (len(service.requests), len(keys)) == (4, 1)

    def test_submissions_get_distinct_keys_unless_one_is_given(self, service):
        service.on("POST", "/v1/jobs", job())
        client = service.client()
        client.submit(SPEC)
        client.submit(SPEC)
        client.submit(SPEC, idempotency_key="mine")
        keys = [request.headers["idempotency-key"] for request in service.requests]
        assert keys[0] != keys[1]
        assert keys[2] == "mine"

    def test_empty_idempotency_key_is_rejected(self, service):
        with pytest.raises(InvalidRequestError, match="Idempotency-Key"):
            service.client().submit(SPEC, idempotency_key="")
        assert service.requests == []

    @pytest.mark.parametrize(
        ("document", "field", "type_name"),
        [
            ({"optimizer": {"lr": float("nan")}}, "optimizer.lr", "nan"),
            ({"metadata": {"date": date(2026, 1, 1)}}, "metadata.date", "date"),
            ({"x": [1, object()]}, "x.1", "object"),
            (_CYCLIC, "a.0", "dict"),
        ],
    )
    def test_non_json_value_is_rejected_before_any_request(self, service, document, field, type_name):
        with pytest.raises(InvalidRequestError) as caught:
            service.client().submit(document)
        message = f"must be a string, a finite number or other plain JSON data, not {type_name}"
        assert (caught.value.param, str(caught.value)) == (field, f"{field}: {message}")
        assert service.requests == []

    def test_non_json_key_is_rejected_before_any_request(self, service):
        with pytest.raises(InvalidRequestError, match="the spec is not plain JSON data: keys must be"):
            service.client().submit({(1, 2): 3})

    @pytest.mark.parametrize("document", ["digits.yaml", "", [SPEC]])
    def test_file_name_is_rejected_as_a_spec(self, service, document):
        with pytest.raises(InvalidRequestError, match=r'mapping of fields, .* for a file, pass Path\("spec.yaml"\)'):
            service.client().submit(document)
        assert service.requests == []

    def test_path_is_read_as_a_spec(self, service, tmp_path):
        service.on("POST", "/v1/jobs", job("a1"))
        (tmp_path / "spec.yaml").write_text("task: comm_check\n")
        assert service.client().submit(tmp_path / "spec.yaml").id == "a1"
        assert service.requests[0].content == b"task: comm_check\n"

    @pytest.mark.parametrize("name", ["absent.yaml", "."])
    def test_path_that_cannot_be_read_is_named(self, service, tmp_path, name):
        with pytest.raises(InvalidRequestError, match="cannot read the spec file"):
            service.client().submit(tmp_path / name)

    def test_word_is_the_name_of_a_preset(self, service):
        template = {"name": "digits_ddp", "description": "", "spec": {"task": "comm_check"}, "yaml": ""}
        service.on("GET", "/v1/templates/digits_ddp", template).on("POST", "/v1/jobs", job("a1"))
        assert service.client().submit("digits_ddp").id == "a1"
        assert json.loads(service.requests[-1].content) == {"task": "comm_check"}

    def test_invalid_yaml_is_rejected_by_the_service(self, service):
        service.on("POST", "/v1/jobs", error(400, "not valid YAML: line 1", code="invalid_yaml"))
        with pytest.raises(InvalidRequestError, match="not valid YAML: line 1"):
            service.client().submit("a: [1")


class TestPaging:
    def test_pages_follow_the_cursor_and_keep_the_filters(self, service):
        service.on("GET", "/v1/jobs", page(job("a1"), job("a2"), more=True), page(job("a3")))
        listed = service.client().jobs(status="running", metadata={"team": "nlp"})
        assert [one.id for one in listed] == ["a1", "a2", "a3"]
        first, second = (dict(request.url.params) for request in service.requests)
        assert first == {"status": "running", "metadata[team]": "nlp", "order": "desc", "limit": "100"}
        assert second == {**first, "after": "a2"}

    def test_time_filters_accept_datetimes_and_strings(self, service):
        service.on("GET", "/v1/jobs", page())
        after = datetime(2026, 1, 1, tzinfo=UTC)
        assert list(service.client().jobs(created_after=after, created_before="2026-02-01T00:00+01:00")) == []
        sent = service.requests[0].url.params
        assert (sent["created_after"], sent["created_before"]) == ("2026-01-01T00:00:00.000Z", "2026-02-01T00:00+01:00")

    def test_limit_stops_paging(self, service):
        service.on("GET", "/v1/jobs", page(job("a1"), job("a2"), more=True), page(job("a3"), more=True))
        assert [one.id for one in service.client().jobs(limit=2)] == ["a1", "a2"]
        assert len(service.requests) == 1
        assert service.requests[0].url.params["limit"] == "2"

    def test_empty_page_ends_paging_despite_has_more(self, service):
        service.on("GET", "/v1/jobs", {"object": "list", "data": [], "has_more": True})
        assert list(service.client().jobs()) == []

    def test_lists_of_a_job(self, service):
        service.on("GET", "/v1/jobs/a1/attempts", page(attempt(1), more=True), page(attempt(2)))
        assert [one.number for one in service.client().attempts("a1")] == [1, 2]


class TestReads:
    def test_metrics_preserve_non_finite_values(self, service):
        series = {"key": "train/loss", "steps": [1, 2], "values": ["NaN", 0.5], "times": [TIME, TIME]}
        service.on("GET", "/v1/jobs/a1/metrics", {"object": "metrics", "job_id": "a1", "series": [series]})
        curves = service.client().metrics("a1", ["train/loss", "eval/loss"], from_step=0, max_points=10)
        assert str(curves.series[0].values) == "[nan, 0.5]"
        query = service.requests[0].url.query.decode()
        assert query == "key=train%2Floss&key=eval%2Floss&from_step=0&max_points=10"

    def test_csv_is_returned_as_text(self, service):
        text = "key,step,value,time\ntrain/loss,1,0.5,2026-01-02T03:04:05.000Z\n"
        service.on("GET", "/v1/jobs/a1/metrics", csv(text))
        assert service.client().metrics_csv("a1") == text
        assert dict(service.requests[0].url.params) == {"format": "csv", "max_points": "1000000"}

    def test_logs_return_the_next_offset(self, service):
        service.on("GET", "/v1/jobs/a1/logs", log("grüße\n".encode(), 10))
        chunk = service.client().logs("a1", rank="launch", attempt=2, offset=10)
        assert (chunk.text, chunk.offset, chunk.next_offset) == ("grüße\n", 10, 18)
        assert dict(service.requests[0].url.params) == {"rank": "launch", "attempt": "2", "offset": "10"}

    @pytest.mark.parametrize("job_id", ["", ".", "..", "../tokens", "a/b", "a?b", "a b", "ä"])
    def test_malformed_id_is_not_found(self, service, job_id):
        with pytest.raises(NotFoundError, match="there is no job"):
            service.client().attempts(job_id)
        assert service.requests == []

    @pytest.mark.parametrize("reference", ["last", "digits-ddp", "job_abcd"])
    def test_a_reference_gives_the_whole_job_and_not_that_of_a_list(self, service, reference):
        listed = job("job_abcd1234", parameters={"lr": 1})
        whole = listed | {"parameters": {"lr": 1, "momentum": 0.9}}
        service.on("GET", "/v1/jobs", page(listed)).on("GET", f"/v1/jobs/{listed['id']}", whole)
        assert service.client().job(reference).parameters == {"lr": 1, "momentum": 0.9}

    def test_last_is_the_newest_job(self, service):
        service.on("GET", "/v1/jobs", page(job("a1")))
        assert service.client().job("last").id == "a1"
        assert dict(service.requests[0].url.params) == {"limit": "1", "order": "desc"}

    @pytest.mark.parametrize("name", ["night run", "a/b", "ä"])
    def test_other_text_is_the_name_of_a_job(self, service, name):
        service.on("GET", "/v1/jobs", page())
        with pytest.raises(NotFoundError, match="there is no job"):
            service.client().job(name)
        service.on("GET", "/v1/jobs", page(job("a1", name=name)))
        assert service.client().job(name).name == name

    def test_unknown_fields_of_a_newer_service_are_ignored(self, service):
        service.on("GET", "/v1/jobs/a1", job("a1", invented_later=1))
        assert service.client().job("a1").id == "a1"


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (400, InvalidRequestError),
            (401, AuthenticationError),
            (403, PermissionDeniedError),
            (404, NotFoundError),
            (409, ConflictError),
            (413, InvalidRequestError),
            (422, InvalidRequestError),
            (429, RateLimitedError),
            (500, ServerError),
        ],
    )
    def test_each_http_status_has_its_exception(self, service, status, kind):
        service.on("GET", "/v1/jobs/a1", error(status, "what is wrong", code="why", param="gpus"))
        with pytest.raises(kind, match=r"what is wrong$") as caught:
            service.client().job("a1")
        assert caught.value.message == "what is wrong"
        assert (caught.value.status, caught.value.code, caught.value.param) == (status, "why", "gpus")

    def test_spec_error_has_every_problem(self, service):
        problems = [{"param": "gpus", "message": "is 0"}, {"param": "steps", "message": "is required"}]
        service.on("POST", "/v1/jobs", error(422, "gpus: is 0", param="gpus", problems=problems))
        with pytest.raises(InvalidRequestError) as caught:
            service.client().submit(SPEC)
        assert [str(problem) for problem in caught.value.problems] == ["gpus: is 0", "steps: is required"]

    def test_without_a_list_the_error_itself_is_the_problem(self, service):
        service.on("GET", "/v1/jobs", error(422, "must be at most 200", param="limit"))
        with pytest.raises(InvalidRequestError) as caught:
            list(service.client().jobs())
        assert [str(problem) for problem in caught.value.problems] == ["limit: must be at most 200"]

    @pytest.mark.parametrize(
        ("answer", "cause"),
        [
            (httpx.Response(404, text="<html>nginx</html>"), "needs the path in the URL"),
            (httpx.Response(413, text="<html>nginx</html>"), "client_max_body_size"),
            (httpx.Response(500, json={"detail": "boom"}, headers=OTHER), r"\(Server: other\) with 500"),
            (httpx.Response(200, text="<html>hello</html>"), "the sign-in page of a network"),
            (httpx.Response(200, json={"object": "job"}, headers=OTHER), "another program"),
            (httpx.Response(302, headers=OTHER | {"Location": "https://sso/"}), "it redirects to https://sso/"),
        ],
    )
    def test_answer_of_another_program_is_an_outage(self, service, answer, cause):
        service.on("GET", "/v1/jobs/a1", answer)
        with pytest.raises(ForeignAnswerError, match=rf"{cause}.*; is TRAINYARD_URL correct\?$"):
            service.client().job("a1")
        assert len(service.requests) == ATTEMPTS

    @pytest.mark.parametrize(("method", "status"), [("DELETE", 200), ("DELETE", 404), ("HEAD", 200), ("HEAD", 404)])
    def test_sign_in_page_is_no_success_and_no_refusal(self, service, tmp_path, method, status):
        page = httpx.Response(status, text="<html>sign in</html>")
        (tmp_path / "train.py").touch()
        service.on("DELETE", "/v1/jobs/a1", page).on("HEAD", f"/v1/code/{pack(tmp_path).digest}", page)
        client = service.client()
        with pytest.raises(ForeignAnswerError):
            client.delete("a1") if method == "DELETE" else client.upload(tmp_path)

    def test_answer_of_another_release_is_a_server_error(self, service):
        service.on("GET", "/v1/jobs/a1", httpx.Response(200, json={"object": "job"}))
        with pytest.raises(ServerError, match="of the same release"):
            service.client().job("a1")

    def test_refused_connection_error_has_url_and_fix(self, service):
        service.on("GET", "/v1/jobs/a1", httpx.ConnectError("refused"))
        expected = "cannot connect to http://trainyard.test: is TRAINYARD_URL correct, and is the service running?"
        with pytest.raises(ConnectionFailedError) as caught:
            service.client().job("a1")
        assert str(caught.value) == expected

    @pytest.mark.parametrize(
        ("url", "reason", "way_out"),
        [
            ("http://127.0.0.1:8470", "refused", "is the service running? Start it with: trainyard serve"),
            ("https://localhost:8470", "[SSL] wrong version number", "should the URL start with http://?"),
        ],
    )
    def test_suggested_fix_depends_on_the_address(self, url, reason, way_out):
        assert connection_failed(url, httpx.ConnectError(reason)).message.endswith(way_out)


class TestRetries:
    @pytest.mark.parametrize(
        "failure", [httpx.ConnectError("x"), httpx.ReadTimeout("x"), error(429, "x"), error(502, "x"), error(503, "x")]
    )
    def test_transient_failures_are_tried_four_times(self, service, failure):
        service.on("GET", "/v1/jobs/a1", failure)
        with pytest.raises((ConnectionFailedError, RateLimitedError, ServerError)):
            service.client().job("a1")
        assert len(service.requests) == 4
        assert [round(s, 2) for s in service.slept] == pytest.approx([0.2, 0.4, 0.8], rel=0.26)

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 500])
    def test_final_errors_are_not_retried(self, service, status):
        whole_id = "job_" + "0" * 26
        service.on("GET", f"/v1/jobs/{whole_id}", error(status, "x"))
        with pytest.raises(Exception, match="x"):
            service.client().job(whole_id)
        assert len(service.requests) == 1

    def test_retry_after_is_respected_up_to_a_limit(self, service):
        service.on("GET", "/v1/jobs/a1", error(429, "x", headers={"Retry-After": "7"}), job("a1"))
        service.client().job("a1")
        assert service.slept == [7.0]

    @pytest.mark.parametrize("value", ["²", "٣", "-1", "1.5", "soon"])
    def test_invalid_retry_after_is_ignored(self, value):
        headers = {"Retry-After": value.encode()}
        response = httpx.Response(429, json={}, headers=headers, request=httpx.Request("GET", "http://x"))
        assert error_of(response).retry_after is None

    def test_retry_after_of_an_hour_is_not_waited_for(self, service):
        service.on("GET", "/v1/jobs/a1", error(429, "x", headers={"Retry-After": "3600"}))
        with pytest.raises(RateLimitedError):
            service.client().job("a1")
        assert service.slept == []


class TestTimeout:
    def test_timeout_applies_to_the_answer_and_not_to_connecting(self, service):
        service.on("GET", "/v1/jobs/a1", job("a1"))
        service.client(timeout=120.0).job("a1")
        assert service.requests[0].extensions["timeout"] == {
            "connect": 5.0,
            "read": 120.0,
            "write": 120.0,
            "pool": 120.0,
        }


class TestWait:
    def test_returns_the_job_when_it_has_ended(self, service):
        service.on("GET", "/v1/jobs/a1", job("a1"), job("a1", status="running"), job("a1", status="failed"))
        assert service.client().wait("a1").status == "failed"
        assert len(service.slept) == 2

    def test_outlives_a_restart_of_the_service(self, service):
        down = [httpx.ConnectError("refused")] * 9
        service.on("GET", "/v1/jobs/a1", job("a1"), *down, error(503, "starting"), job("a1", status="succeeded"))
        assert service.client().wait("a1").status == "succeeded"

    def test_unreachable_service_is_an_error_at_once(self, service):
        service.on("GET", "/v1/jobs/a1", httpx.ConnectError("refused"))
        with pytest.raises(ConnectionFailedError):
            service.client().wait("a1")
        assert len(service.requests) == 4

    def test_has_a_limit(self, service):
        service.on("GET", "/v1/jobs/a1", job("a1"))
        with pytest.raises(WaitTimeoutError, match="job a1 has not ended after 0 seconds"):
            service.client().wait("a1", timeout=0)


class TestReadiness:
    def test_returns_whether_the_service_is_ready(self, service):
        service.on("GET", "/readyz", httpx.ConnectError("refused"), httpx.Response(503), httpx.Response(200))
        client = service.client()
        assert [client.ready() for _ in range(3)] == [False, False, True]
        assert service.slept == []
