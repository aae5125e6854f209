"""Which node follows an event file, and which rank writes it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from trainyard.contract.layout import AttemptLayout
from worker.trackers.event_claims import EventClaims

OWN = Path(f"/shared/events.out.tfevents.1.{socket.gethostname()}.12.0")
FOREIGN = Path("/shared/events.out.tfevents.1.some-container.12.0")


def test_one_of_two_nodes_gets_each_file(tmp_path: Path) -> None:
    now = [0.0]
    first, second = (EventClaims(AttemptLayout(tmp_path), node, shared=True, now=lambda: now[0]) for node in (0, 1))
    assert first.claim(OWN)
    assert second.claim(OWN) is False
    assert first.claim(OWN)
    assert (first.claim(FOREIGN), second.claim(FOREIGN)) == (None, None)
    now[0] = 11.0
    assert second.claim(FOREIGN)
    assert first.claim(FOREIGN) is False


def test_end_of_the_program_decides_at_once(tmp_path: Path) -> None:
    assert EventClaims(AttemptLayout(tmp_path), 0, shared=True).claim(FOREIGN, at_once=True)


def test_single_node_writes_no_claims(tmp_path: Path) -> None:
    assert EventClaims(AttemptLayout(tmp_path), 0, shared=False).claim(FOREIGN)
    assert list(tmp_path.iterdir()) == []


def test_rank_is_that_of_the_writing_process(tmp_path: Path) -> None:
    claims = EventClaims(AttemptLayout(tmp_path), 0, shared=False)
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TRAINYARD_RANK": "3"},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        name = f"events.out.tfevents.1795523691.{socket.gethostname()}.{process.pid}"
        assert [claims.rank(Path(name + end)) for end in (".0", "", ".0.v2")] == [3, 3, 3]
        process.communicate(b"\n")
    assert claims.rank(Path(name + ".0")) == 0
    assert claims.rank(FOREIGN) == 0
