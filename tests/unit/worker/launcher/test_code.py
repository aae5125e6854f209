"""Unpacking code: what was uploaded, and nothing outside the folder, whatever the archive says."""

import hashlib
import io
import tarfile

import pytest

from worker.launcher.code import CodeError, unpack


def member(name, kind=tarfile.REGTYPE, link="", content=b"x"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = len(content) if kind == tarfile.REGTYPE else 0
    return info, content


def archive(tmp_path, *members, mode="w"):
    path = tmp_path / "code.tar"
    with tarfile.open(path, mode) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content) if info.size else None)
    return path, f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_unpacking_replaces_existing_files(tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "left").write_text("by a launcher that was killed")
    unpack(*archive(tmp_path, member("a.py"), member("sub/b.py", content=b"deep")), folder)
    assert sorted(path.name for path in folder.rglob("*")) == ["a.py", "b.py", "sub"]
    assert (folder / "sub" / "b.py").read_bytes() == b"deep"


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        (member("../escaped"), "outside"),
        (member("a/../../escaped"), "outside"),
        (member("link", tarfile.SYMTYPE, "/etc/passwd"), "neither a regular file nor a folder"),
        (member("link", tarfile.LNKTYPE, "a.py"), "neither a regular file nor a folder"),
        (member("pipe", tarfile.FIFOTYPE), "neither a regular file nor a folder"),
        (member("device", tarfile.CHRTYPE), "neither a regular file nor a folder"),
        (member("large", content=b"x" * 5000), "unpacks to more than"),
    ],
)
def test_unsafe_members_are_rejected(tmp_path, planted, message):
    path, digest = archive(tmp_path, member("a.py"), planted)
    with pytest.raises(CodeError, match=message):
        unpack(path, digest, tmp_path / "in" / "code", limit=4096)
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "in" / "escaped").exists()


def test_an_absolute_name_lands_inside(tmp_path):
    path, digest = archive(tmp_path, member("/etc/trainyard-test"))
    unpack(path, digest, tmp_path / "code")
    assert (tmp_path / "code" / "etc" / "trainyard-test").is_file()


def test_wrong_digest_compression_and_missing_archive_differ(tmp_path):
    path, _ = archive(tmp_path, member("a.py"))
    with pytest.raises(CodeError, match="is damaged"):
        unpack(path, "sha256:" + "0" * 64, tmp_path / "code")
    with pytest.raises(CodeError, match="is not an uncompressed tar"):
        unpack(*archive(tmp_path, member("a.py"), mode="w:gz"), tmp_path / "code")
    path.unlink()
    with pytest.raises(CodeError, match="is missing"):
        unpack(path, "sha256:" + "0" * 64, tmp_path / "code")
