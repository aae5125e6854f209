"""`JobHandle`: one job in a program."""

import asyncio

import httpx
import pytest

from tests.support.service_transport import service_transport
from tests.unit.trainyard.fake_service import TIME, FakeService, csv, job, page
from trainyard.client import Client, ConflictError

SERIES = [{"key": "train/loss", "steps": [1, 2], "values": [0.5, "NaN"], "times": [TIME, TIME], "x": [1.5, 3.0]}]


def answering() -> FakeService:
    service = FakeService().on(
        "GET", "/v1/jobs/a1", job("a1", status="running"), job("a1", status="running"), job("a1", status="succeeded")
    )
    service.on("GET", "/v1/jobs/a1/metrics", {"job_id": "a1", "axis": "time", "series": SERIES})
    service.on("POST", "/v1/jobs/a1/cancel", job("a1", status="cancelling")).on(
        "GET", "/v1/jobs/a1/checkpoints", page()
    )
    offsets = {"x-trainyard-offset": "0", "x-trainyard-next-offset": "2"}
    return service.on("GET", "/v1/jobs/a1/logs", httpx.Response(200, content=b"hi", headers=offsets))


def test_handle_methods_need_no_job_id() -> None:
    service = answering()
    with service.client() as client:
        held = client.job("a1")
        assert (held.id, held.status, held.resource.status) == ("a1", "running", "running")
        table = held.metrics(["train/loss"], x="time")
        assert held.logs(rank=0, tail=1).text == "hi"
        assert held.checkpoints() == []
        assert held.cancel().status == held.status == "cancelling"
        assert held.wait().status == "succeeded"
        assert repr(held) == "<job a1 'digits-ddp', succeeded>"
    # What pandas.DataFrame takes: columns of one length.
    assert list(table) == ["key", "step", "value", "time", "seconds"]
    assert {len(column) for column in table.values()} == {2}
    assert table["seconds"] == [1.5, 3.0]


def test_async_handle_behaves_the_same() -> None:
    service = answering()

    async def use() -> None:
        async with service.async_client() as client:
            held = await client.job("a1")
            assert (await held.metrics())["step"] == [1, 2]
            assert await held.checkpoints() == []
            assert (await held.refresh()).status == "running"
            assert (await held.wait()).status == "succeeded"

    asyncio.run(use())


def test_listed_jobs_are_handles() -> None:
    service = answering().on("GET", "/v1/jobs", page(job("a1"), more=True), page(job("a1")))
    with service.client() as client:
        first, second = client.jobs(status="running", limit=2)
        assert first.cancel().status == first.status == "cancelling"
        assert second.wait().status == "succeeded"

    service = answering().on("GET", "/v1/jobs", page(job("a1")))

    async def use() -> None:
        async with service.async_client() as client:
            (held,) = [held async for held in client.jobs()]
            assert (await held.cancel()).status == held.status == "cancelling"

    asyncio.run(use())


def test_metrics_are_read_by_the_names_of_the_program() -> None:
    service = answering()
    with service.client() as client:
        client.job("a1").metrics("acc@1", "train/loss", "a,b")
        client.job("a1").metrics(["acc@5"])
        client.job("a1").metrics()
    read = [request for request in service.requests if request.url.path.endswith("/metrics")]
    assert [request.url.params.get_list("key") for request in read] == [["acc@1", "train/loss", "a,b"], ["acc@5"], []]


def test_metrics_of_several_jobs_as_csv() -> None:
    service = FakeService().on("GET", "/v1/jobs", page(job("a1"), job("a2")))
    service.on("GET", "/v1/metrics", csv("job,key,step,value,time\n"))
    with service.client() as client:
        assert client.metrics_csv_of(["a1", "a2"], "train/loss").startswith("job,")
    sent = service.requests[-1].url.params
    assert (sent.get_list("job"), sent["key"], sent["format"]) == (["a1", "a2"], "train/loss", "csv")


def test_submit_returns_a_handle() -> None:
    service = answering().on("POST", "/v1/jobs", httpx.Response(201, json=job("a1", status="queued")))
    with service.client() as client:
        held = client.submit("task: regression\n")
        assert held.status == "queued"
        assert held.metrics("train/loss", x="time")["seconds"] == [1.5, 3.0]
        assert held.wait().status == "succeeded"
        assert client.fork("a1").id == "a1"
    request = next(request for request in service.requests if request.url.path.endswith("/metrics"))
    assert request.url.params.get_list("key") == ["train/loss"]


def test_async_submit_returns_a_handle() -> None:
    service = answering().on("POST", "/v1/jobs", httpx.Response(201, json=job("a1", status="queued")))

    async def use() -> None:
        async with service.async_client() as client:
            assert (await (await client.submit("task: regression\n")).wait()).status == "succeeded"
            assert (await (await client.fork("a1")).cancel()).status == "cancelling"

    asyncio.run(use())


def test_rejected_action_leaves_the_handle_unchanged() -> None:
    problem = {"error": {"message": "not paused", "type": "conflict_error", "param": None, "code": "not_paused"}}
    service = FakeService().on("GET", "/v1/jobs/a1", job("a1", status="running"))
    service.on("POST", "/v1/jobs/a1/resume", httpx.Response(409, json=problem))
    held = service.client().job("a1")
    with pytest.raises(ConflictError):
        held.resume()
    assert held.status == "running"
    with pytest.raises(AttributeError):
        held.nonsense  # noqa: B018


def test_handle_is_a_table_with_sparklines_in_a_notebook() -> None:
    curves = [{"key": "loss", "steps": [1, 2, 3], "values": [3.0, "NaN", 1.0], "times": [TIME] * 3}]
    resource = job("a1", name="<b>run</b>", metrics={"loss": 1.0, "acc": None})
    service = FakeService().on("GET", "/v1/jobs/a1", resource)
    service.on("GET", "/v1/jobs/a1/metrics", {"job_id": "a1", "axis": "step", "series": curves})
    with service.client() as client:
        handle = client.job("a1")
        html = handle._repr_html_()
        assert handle._repr_html_() == html
        assert dict(service.requests[-1].url.params.multi_items())["max_points"] == "200"
        handle.metrics("loss")
        count = len(service.requests)
        assert handle._repr_html_() == html
        assert len(service.requests) == count
    assert "&lt;b&gt;run&lt;/b&gt;" in html
    assert html.count("<svg") == 1
    assert '<a href="http://trainyard.test/jobs/a1" target="_blank">a1</a>' in html
    assert 'points="0.0,1.0 160.0,23.0"' in html


def test_table_of_a_notebook_needs_no_curves() -> None:
    service = FakeService().on("GET", "/v1/jobs/a1", job("a1", metrics={"loss": 1.0}))
    service.on("GET", "/v1/jobs/a1/metrics", httpx.Response(404, json={"error": {"message": "gone"}}))
    with service.client() as client:
        assert "<td>1</td><td></td>" in client.job("a1")._repr_html_()


def test_table_of_the_asynchronous_client_reads_no_curves() -> None:
    service = FakeService().on("GET", "/v1/jobs/a1", job("a1", metrics={"loss": 1.0}))

    async def use() -> str:
        async with service.async_client() as client:
            return (await client.job("a1"))._repr_html_()

    assert "<td>1</td><td></td>" in asyncio.run(use())


def test_metrics_of_several_jobs_as_columns() -> None:
    curves = [{"job_id": name, "axis": "time", "series": SERIES} for name in ("a1", "a2")]
    service = FakeService().on("GET", "/v1/metrics", {"object": "list", "data": curves})
    service.on("GET", "/v1/jobs", page(job("a1", name="first"), job("a2")))
    with service.client() as client:
        table = client.metrics_of(["first", "a2"], ["acc@1"], x="time").table()
    sent = service.requests[-1].url.params
    assert (sent.get_list("job"), sent.get_list("key")) == (["a1", "a2"], ["acc@1"])
    assert list(table) == ["job", "key", "step", "value", "time", "seconds"]
    assert table["job"] == ["a1", "a1", "a2", "a2"]
    assert table["step"] == [1, 2, 1, 2]


def test_job_has_the_address_of_its_page() -> None:
    service = answering()
    with service.client() as client:
        assert client.job("a1").url == "http://trainyard.test/jobs/a1"


def test_client_is_represented_by_its_service_without_secrets() -> None:
    transport = service_transport(lambda _: httpx.Response(404))
    with Client("https://anna:secret@yard.test/base", "secret", transport=transport) as client:
        assert repr(client) == "<Client of https://yard.test/base>"
        assert client.job_url("job_1") == "https://yard.test/base/jobs/job_1"
        assert client.sweep_url("swp_1") == "https://yard.test/base/compare?sweep=swp_1"
    assert repr(FakeService().async_client()) == "<AsyncClient of http://trainyard.test>"
