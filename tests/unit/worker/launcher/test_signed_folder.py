import os
import shutil
import stat
import threading

import pytest

from worker.launcher.signed_folder import SignedFolder


@pytest.fixture
def folder(tmp_path):
    return SignedFolder(tmp_path / "nodes-7", b"the token")


def test_nodes_read_what_others_wrote(tmp_path, folder):
    folder.write("1/store/a key%", "the value\n")
    other = SignedFolder(tmp_path / "nodes-7", b"the token")
    assert other.read("1/store/a key%") == "the value\n"
    assert other.names("1/") == {"1/store/a key%"}
    assert other.names("2/") == set()
    assert other.read("1/store/absent") is None


def test_other_accounts_can_neither_read_nor_write(tmp_path, folder):
    previous = os.umask(0)
    try:
        folder.write("a", "b")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "nodes-7").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "nodes-7" / "a").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        bytes(32),
        bytes(32) + b"value",
        b"cos\nsystem\n(S'id'\ntR.",
        b"\xff" * 1000,
        b"[" * 3_000_000,
    ],
)
def test_a_value_without_the_signature_is_absent(tmp_path, folder, content):
    (tmp_path / "nodes-7").mkdir()
    (tmp_path / "nodes-7" / "a").write_bytes(content)
    assert folder.read("a") is None


def test_a_value_of_another_name_job_or_token_is_absent(tmp_path, folder):
    folder.write("a", "b")
    shutil.copy(tmp_path / "nodes-7" / "a", tmp_path / "nodes-7" / "c")
    shutil.copytree(tmp_path / "nodes-7", tmp_path / "nodes-8")
    assert folder.read("c") is None
    assert SignedFolder(tmp_path / "nodes-8", b"the token").read("a") is None
    assert SignedFolder(tmp_path / "nodes-7", b"another").read("a") is None
    assert folder.read("a") == "b"


def test_a_changed_or_truncated_value_is_absent(tmp_path, folder):
    folder.write("a", "b")
    path = tmp_path / "nodes-7" / "a"
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        assert folder.read("a") is None, position
    for end in range(len(content)):
        path.write_bytes(content[:end])
        assert folder.read("a") is None, content[:end]


@pytest.mark.cpu_seconds(1)
@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir()])
def test_what_is_no_file_in_place_of_a_value_is_absent(tmp_path, folder, plant):
    (tmp_path / "nodes-7").mkdir()
    plant(tmp_path / "nodes-7" / "a")
    reader = threading.Thread(target=folder.read, args=("a",), daemon=True)
    reader.start()
    reader.join(10)
    assert not reader.is_alive(), "the launcher waits for what is no value"
    assert folder.read("a") is None


def test_a_value_behind_a_link_is_absent(tmp_path, folder):
    folder.write("a", "b")
    (tmp_path / "nodes-7" / "a").rename(tmp_path / "value")
    (tmp_path / "nodes-7" / "a").symlink_to(tmp_path / "value")
    assert folder.read("a") is None


def test_a_value_beyond_the_limit_is_neither_written_nor_read(tmp_path, folder):
    with pytest.raises(ValueError, match="at most"):
        folder.write("a", "x" * (1 << 20) + "x")
    folder.write("a", "x" * (1 << 20))
    assert folder.read("a") == "x" * (1 << 20)
    with (tmp_path / "nodes-7" / "a").open("ab") as file:
        file.write(b"more")
    assert folder.read("a") is None


def test_a_folder_that_cannot_be_listed_has_no_values(tmp_path, folder):
    (tmp_path / "nodes-7").write_text("a file in its place")
    assert folder.names() == set()
    assert folder.read("a") is None
