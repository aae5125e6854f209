"""`trainyard files`: what is printed."""

from tests.unit.trainyard.fake_service import TIME

FILE = {
    "object": "data_file",
    "id": "file_01kdvdna00yhj80arqj5k8gms6",
    "name": "chats.jsonl",
    "size_bytes": 2048,
    "digest": f"sha256:{'ab' * 32}",
    "format": "chat",
    "examples": 3,
    "created_by": "alice",
    "created_at": TIME,
}


def test_show_names_the_kind_of_digest(service, run):
    service.on("GET", f"/v1/files/{FILE['id']}", FILE)
    shown = dict(line.split(maxsplit=1) for line in run("files", "show", FILE["id"]).stdout.splitlines())
    assert shown["sha256"] == "ab" * 32
    assert (shown["name"], shown["examples"]) == ("chats.jsonl", "3")
