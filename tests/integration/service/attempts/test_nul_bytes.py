"""NUL bytes in reports, which databases cannot store, neither lose nor block other reports."""

import json

from tests.support.world import World


def test_nul_and_truncated_characters_are_replaced(world: World) -> None:
    job = world.submit()
    worker = world.start(job)
    time = world.clock().isoformat()
    data = {"k\0": ["x\0y", {"z": "\\u0000 stays"}], "half": "\ud800"}
    event = {"sequence": 1, "type": "note", "message": "a\0b", "data": data, "time": time}
    body = json.dumps({"execution": 1, "events": [event]})
    path, headers = f"/v1/attempts/{worker.attempt_id}/events", {"Content-Type": "application/json"}
    answer = worker.client.post(path, content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    failure = {"type": "ValueError", "message": "embedded \0 here", "traceback": "line\0", "rank": 0}
    assert worker.finish("error", failure=failure).status_code == 200
    world.scheduler.set_states("ended")
    world.tick(2)
    assert world.job(job)["error"]["message"] == "embedded \ufffd here"
    events = world.client.get(f"/v1/jobs/{job}/events?limit=200").json()["data"]
    (answer,) = [one for one in events if one["type"] == "worker.note"]
    assert answer["message"] == "a\ufffdb"
    assert answer["data"] == {"k\ufffd": ["x\ufffdy", {"z": "\\u0000 stays"}], "half": "?"}
