"""Code archives are reproducible and contain no ignored files and no files outside the folder."""

import os
import tarfile
from io import BytesIO

import pytest

from trainyard.client.code_archive import pack
from trainyard.contract.problems import SpecError


def fill(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(archive):
    with tarfile.open(fileobj=BytesIO(archive.data)) as tar:
        return tar.getnames()


def test_the_same_files_give_the_same_bytes(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    fill(one, a="1", b="2", sub__c="3")
    fill(other, sub__c="3", b="2", a="1")
    os.utime(other / "a", (1, 1))
    assert pack(one) == pack(other)
    assert names(pack(one)) == ["a", "b", "sub/c"]
    fill(other, a="4")
    assert pack(one).digest != pack(other).digest


def test_files_that_are_never_code_are_left_out(tmp_path):
    fill(tmp_path, train="x")
    for name in (".git/config", "__pycache__/train.pyc", "env/pyvenv.cfg", "env/lib/big", "node_modules/x", "a.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert names(pack(tmp_path)) == ["train"]


def test_ignore_file_excludes_its_patterns(tmp_path):
    fill(tmp_path, **{"a.py": "", "b.csv": "", "data__c.py": "", "runs__old__d": "", "runs__new__d": "", "out": ""})
    (tmp_path / ".trainyardignore").write_text("# no data\n*.csv\ndata/\nruns/old\nout/\n")
    assert names(pack(tmp_path)) == [".trainyardignore", "a.py", "out", "runs/new/d"]


def test_ignore_file_of_a_folder_is_for_that_folder(tmp_path):
    fill(tmp_path, **{"a.csv": "", "sub__a.csv": "", "sub__old__d": "", "old__d": ""})
    (tmp_path / "sub" / ".trainyardignore").write_text("*.csv\nsub/old\n./old\n/old/\n")
    assert names(pack(tmp_path)) == ["a.csv", "old/d", "sub/.trainyardignore"]


def test_error_over_the_limit_lists_the_largest_files(tmp_path):
    fill(tmp_path, small="x", large="x" * 3000, sub__larger="x" * 4000)
    with pytest.raises(SpecError, match=r"code: .*Largest files: sub/larger \(3\.91 KiB\), large \(2\.93 KiB\)$"):
        pack(tmp_path, limit=5000)


def test_error_about_many_small_files_lists_the_largest_folders(tmp_path):
    for number in range(150):
        fill(tmp_path, **{f"data__{number}": "x" * 10, f"n{number}": "x"})
    limits = r"holds 1\.61 KiB in 300 files, .* at most 0\.977 KiB; "
    with pytest.raises(SpecError, match=limits + r".*Largest folders: data/ \("):
        pack(tmp_path, limit=1000)


def test_link_inside_the_folder_is_packed_and_one_outside_is_refused(tmp_path):
    inside = fill(tmp_path / "mine", a="text")
    (inside / "b").symlink_to("a")
    assert names(pack(inside)) == ["a", "b"]
    (inside / "c").symlink_to("/etc/passwd")
    with pytest.raises(SpecError, match="'c' is a link that leads out of the folder"):
        pack(inside)
    (inside / "c").unlink()
    (inside / "c").symlink_to(".")
    with pytest.raises(SpecError, match="'c' is a link to a folder"):
        pack(inside)


def test_link_to_a_folder_is_packed_as_a_copy(tmp_path):
    fill(tmp_path, v1__a="1", v1__deep__b="2")
    (tmp_path / "latest").symlink_to("v1")
    (tmp_path / "v1" / "deep" / "absolute").symlink_to(tmp_path / "v1" / "a")
    folder = ["a", "deep/absolute", "deep/b"]
    assert names(pack(tmp_path)) == [f"{name}/{one}" for name in ("latest", "v1") for one in folder]


def test_links_to_folders_that_lead_to_each_other_are_refused(tmp_path):
    fill(tmp_path, one__a="1", two__b="2")
    (tmp_path / "one" / "other").symlink_to("../two")
    (tmp_path / "two" / "other").symlink_to("../one")
    with pytest.raises(SpecError, match=r"'(one|two)/other' is a link to a folder around it"):
        pack(tmp_path)


def test_links_that_multiply_files_are_refused_before_all_are_listed(tmp_path):
    for level in range(30):
        fill(tmp_path / f"{level}", a="1")
        for name in "xy":
            (tmp_path / f"{level}" / name).symlink_to(f"../{level + 1}")
    fill(tmp_path / "30", a="1")
    with pytest.raises(SpecError, match=r"holds 1,001 files or more, each .*Largest folders: "):
        pack(tmp_path, limit=5000)


def test_empty_folder_is_packed(tmp_path):
    fill(tmp_path, **{"train.py": "", "cache__deep__a.csv": "", "cache__.trainyardignore": "*.csv"})
    (tmp_path / "out" / "plots").mkdir(parents=True)
    assert names(pack(tmp_path)) == ["cache/.trainyardignore", "cache/deep", "out/plots", "train.py"]


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(SpecError, match="is not a folder"):
        pack(tmp_path / "nope")
