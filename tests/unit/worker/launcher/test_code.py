"""Unpacking of uploaded code: no archive can write outside the folder."""

import errno
import hashlib
import io
import os
import random
import shutil
import tarfile

import pytest

from tests.unit.worker.launcher.test_nodes import document
from trainyard.contract.layout import RunLayout
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.spec.user_code import code_archive
from worker.launcher.code import CodeError, prepare_code, unpack


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


def header(name="a", size=0, kind=tarfile.REGTYPE, content=b"", **fields):
    """One raw member; `fields` replace bytes of the header at an offset, before its checksum is computed."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, 0
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    block[124:136] = size if isinstance(size, bytes) else b"%011o\0" % size
    for offset, value in fields.items():
        block[int(offset[1:]) : int(offset[1:]) + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + content + b"\0" * (-len(content) % 512)


def pax(**records):
    """An extended header for the next member."""
    lines = b""
    for key, value in records.items():
        body = b" " + key.replace("_", ".").encode() + b"=" + value + b"\n"
        size = len(body) + 1
        while len(str(size)) + len(body) != size:
            size = len(str(size)) + len(body)
        lines += str(size).encode() + body
    return header("pax", len(lines), tarfile.XHDTYPE, lines)


LONG = header("long", 5, tarfile.GNUTYPE_LONGNAME, b"name\0")
MALFORMED = {
    "NUL in a pax path": pax(path=b"a\0b") + header(),
    "huge pax size": pax(size=str(2**70).encode()) + header(),
    "huge base-256 size": header(size=b"\x80\0\0\0\x40\0\0\0\0\0\0\0"),
    "negative base-256 size": header(size=b"\xff" * 12) + header("b"),
    "extended header of 2**60 bytes": header("pax", b"\x80" + (2**60).to_bytes(11, "big"), tarfile.XHDTYPE) + header(),
    "long name of 2**60 bytes": header("x", b"\x80" + (2**60).to_bytes(11, "big"), tarfile.GNUTYPE_LONGNAME) + header(),
    "sparse 1.0": pax(GNU_sparse_major=b"1", GNU_sparse_minor=b"0", GNU_sparse_realsize=b"9") + header(size=3),
    "sparse 0.1": pax(GNU_sparse_map=b"1,x,3") + header(),
    "sparse 0.0": pax(GNU_sparse_offset=b"x", GNU_sparse_numbytes=b"y", GNU_sparse_size=b"1") + header(),
    "old sparse": header(kind=tarfile.GNUTYPE_SPARSE, o386=b"\xff" * 96),
    "chained long names": LONG * 3000 + header(),
    "chained pax headers": pax(path=b"x") * 3000 + header(),
    "2000 folders": pax(path=b"d/" * 2000 + b"f") + header(),
    "long name": pax(path=b"n" * 5000) + header(),
    "long part of a name": pax(path=b"n" * 300) + header(),
    "truncated content": header(size=4000)[:600],
    "folder over a file": header("x") + header("x/y"),
    "file over a folder": header("x", kind=tarfile.DIRTYPE) + header("x"),
    "the folder itself as a file": header("."),
}


def prepare(tmp_path, data, **fields):
    """The exit record of the launcher for an archive of these bytes; None if it accepts them."""
    code = f"sha256:{hashlib.sha256(data).hexdigest()}"
    spec = parse_spec({"task": "script", "argv": ["-m", "x"], "code": code, **fields})
    layout = RunLayout(tmp_path / "runs" / "job_1").attempt("1")
    path = code_archive(tmp_path / "runs", spec.code)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return prepare_code(layout, document(spec=spec), 1)


def rejected_reason(tmp_path, data):
    """Why the launcher rejects these bytes; None if it accepts them."""
    record = prepare(tmp_path, data)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    if record is None:
        return None
    assert (record.reason, record.failure.final) == ("rejected", True)
    return record.failure.message


def archives(tmp_path):
    return code_archive(tmp_path / "runs", f"sha256:{'0' * 64}").parent.iterdir()


@pytest.mark.parametrize(
    ("folder", "argv", "reason"),
    [
        ("exp", ["../a.py"], None),
        ("new", ["-m", "x"], None),
        ("exp", ["a.py"], "there is no file `a.py` in the folder `exp` of the uploaded code"),
        ("a.py", ["-m", "x"], "`a.py`, in which the program starts, is a file of the uploaded code"),
    ],
)
def test_program_is_in_the_folder_where_it_starts(tmp_path, folder, argv, reason):
    path, _ = archive(tmp_path, member("a.py"), member("exp/b.py"))
    record = prepare(tmp_path, path.read_bytes(), launch={"folder": folder}, argv=argv)
    assert (record and record.failure.message) == reason
    assert (tmp_path / "runs" / "job_1" / "work" / folder).is_dir() == (reason is None)


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_archive_is_rejected_with_a_reason(tmp_path, data):
    assert len(rejected_reason(tmp_path, data + b"\0" * 1024)) > 10


@pytest.mark.parametrize(
    ("error", "reason"),
    [(errno.ENOSPC, "disk_full"), (errno.EIO, "error"), (errno.ESTALE, "error"), (errno.EACCES, "error")],
)
def test_errors_of_the_filesystem_are_no_fault_of_the_archive(tmp_path, monkeypatch, error, reason):
    def fail(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("worker.launcher.code.shutil.copyfileobj", fail)
    record = prepare(tmp_path, header("a.py", 3, content=b"x=1") + b"\0" * 1024)
    assert (record.reason, record.failure.final) == (reason, False)
    assert os.strerror(error) in record.failure.message


def test_too_many_members_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr("worker.launcher.code._MAX_MEMBERS", 10)
    assert rejected_reason(tmp_path / "few", header() * 10 + b"\0" * 1024) is None
    assert "more than 10 files" in rejected_reason(tmp_path / "many", header() * 11 + b"\0" * 1024)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 150))])
def test_mutated_archives_are_accepted_or_rejected(tmp_path, seed):
    """Archives with random changes, most of them with a valid checksum, never raise another error."""
    draw = random.Random(seed)
    members = [
        *MALFORMED.values(),
        header("a.py", 3, content=b"x=1"),
        LONG,
        pax(path=b"ok"),
        header("d", 0, tarfile.DIRTYPE),
        header("d", 0, tarfile.SYMTYPE, x157=b"/tmp"),
        header("d/a.py", 3, content=b"x=1"),
        header("hard", 0, tarfile.LNKTYPE, x157=b"../../launch.json"),
        header("tty", 0, tarfile.CHRTYPE),
        header("../up", 3, content=b"x=1"),
        header("a.py/../../up", 3, content=b"x=1"),
        pax(linkpath=b"/etc/passwd"),
        pax(path=b"../../up"),
        pax(path=b"/etc/up"),
        pax(size=b"99999999999"),
        pax(size=b"-1"),
    ]
    members = [raw for raw in members if len(raw) < 5000]
    for _ in range(60):
        data = bytearray(b"".join(draw.choices(members, k=draw.randint(1, 4))))
        for _ in range(draw.randint(0, 4)):
            block = draw.randrange(0, len(data), 512)
            at = block + draw.choice([draw.randrange(512), draw.randrange(100, 160), 156])
            data[at : at + 1] = bytes([draw.choice([0, 32, 48, 55, 128, 255, draw.randrange(256)])])
            if draw.random() < 0.8 and block + 512 <= len(data):
                data[block + 148 : block + 156] = b" " * 8
                data[block + 148 : block + 156] = b"%06o\0 " % sum(data[block : block + 512])
        attempt = RunLayout(tmp_path / "runs" / "job_1").attempt("1")
        attempt.output.unlink(missing_ok=True)
        shutil.rmtree(attempt.work, ignore_errors=True)
        rejected_reason(tmp_path, bytes(data) + b"\0" * 1024)
        unpacked = {attempt.code, attempt.work}
        outside = [path for path in tmp_path.rglob("*") if not path.is_dir() and unpacked.isdisjoint(path.parents)]
        assert {path.name for path in outside} <= {
            "finish-000001.json",
            "output.json",
            *(path.name for path in archives(tmp_path)),
        }
        inside = [path for folder in unpacked for path in folder.rglob("*")]
        assert not any(path.is_symlink() or not (path.is_file() or path.is_dir()) for path in inside)


def test_program_may_be_a_folder_with_a_main_file(tmp_path):
    path, _ = archive(tmp_path, member("app/__main__.py"), member("other/train.py"))
    assert prepare(tmp_path / "one", path.read_bytes(), argv=["app", "x"]) is None
    refused = prepare(tmp_path / "two", path.read_bytes(), argv=["other"])
    assert "there is no file `other`" in refused.failure.message
