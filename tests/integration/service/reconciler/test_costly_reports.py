"""Files that a program fills or extends delay the end of its job by a bounded time."""

import zlib
from pathlib import Path

import pytest

from service.core.untrusted_files import UntrustedFiles
from tests.support.cpu_limit import at_most
from tests.support.world import World

pytestmark = pytest.mark.databases("sqlite")


def test_job_ends_while_its_log_still_grows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()
    worker = world.start(job)
    path = world.folder(job).logs / "rank-0.log"
    path.write_bytes(b"the log\n")
    read, reads = UntrustedFiles.read, []

    def extend(files: UntrustedFiles, file: Path, offset: int, size: int) -> bytes:
        if file == path and len(reads) < 50:
            reads.append(size)
            with path.open("ab") as log:
                log.write(b"more\n")
        return read(files, file, offset, size)

    monkeypatch.setattr(UntrustedFiles, "read", extend)
    worker.end("completed", step=20)
    world.tick(2)
    assert world.status(job) == "succeeded"
    assert len(reads) <= 2
    assert world.client.get(f"/v1/jobs/{job}/logs").text == "the log\n"


def test_record_with_millions_of_values_is_refused_unparsed(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    event = '{"sequence": 1, "type": "note", "message": "m", "time": "2026-01-01T00:00:00Z", "data": {"a": ['
    body = ('{"execution": 1, "events": [' + event + "[]," * 4_000_000 + "0]}}]}").encode()
    line = b'{"seq": 1, "crc": "%08x", "kind": "events", "body": %s}\n' % (zlib.crc32(body), body)
    world.folder(job).spool_file(1).write_bytes(line)
    worker.end("completed", step=20)
    with at_most(1.5):
        world.tick(2)
    assert world.status(job) == "succeeded"
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    assert ["more than 100,000 values" in one["message"] for one in events if one["type"] == "reports_rejected"] == [
        True
    ]
