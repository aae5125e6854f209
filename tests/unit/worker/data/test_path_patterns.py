"""Patterns of data files: what they match, and that they tell nothing about folders outside of the roots."""

import glob
import os
import re

import pytest

from trainyard.contract.allowed_roots import AllowedRoots
from trainyard.contract.spec.text_sources import FileSource
from worker.core.errors import RefusedError
from worker.data.data_files import find_files
from worker.data.path_patterns import matching_paths


def refusal(source, root):
    with pytest.raises(RefusedError) as caught:
        find_files("data.path", source, AllowedRoots(allowed=(str(root),)))
    return caught.value


@pytest.mark.parametrize("pattern", ["linked/*", "lin*/*", "**/*", "l*/key*/*"])
def test_pattern_does_not_list_folders_outside_of_the_roots(tmp_path, pattern):
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    allowed.mkdir()
    (outside / "keys").mkdir(parents=True)
    (outside / "keys" / "name-of-a-secret").touch()
    (allowed / "linked").symlink_to(outside)
    named = str(allowed / pattern)
    error = refusal(FileSource(path=named), allowed)
    assert str(error).startswith(f"data.path: {named} leads out of the folders")
    assert not re.search("name-of-a-secret|allowed/linked/keys", str(error))


def test_splits_outside_of_the_roots_are_not_named(tmp_path):
    (tmp_path / "outside" / "name-of-a-secret").mkdir(parents=True)
    (tmp_path / "outside" / "dataset_dict.json").touch()
    (tmp_path / "allowed").mkdir()
    linked = tmp_path / "allowed" / "linked"
    linked.symlink_to(tmp_path / "outside")
    for source in ("dataset", "jsonl"):
        error = refusal(FileSource(source=source, path=str(linked)), tmp_path / "allowed")
        assert str(error).startswith(f"data.path: {linked} leads out of the folders")


def test_pattern_finds_what_glob_does(tmp_path):
    """But for the folder before `**`."""
    for name in ("a/b/x.jsonl", "a/y.jsonl", "a/.h/z.jsonl", "c/.w.jsonl", "c/[x].jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "linked").symlink_to(tmp_path / "a" / "b")
    for pattern in ("*/*.jsonl", "**/*.jsonl", "a/**/x.jsonl", "*/.w*", "[ac]/?.jsonl", "*/b/*", "a/**", "*/[[]*"):
        named = str(tmp_path / pattern)
        expected = {os.path.normpath(path) for path in glob.glob(named, recursive=True)} - {str(tmp_path / "a")}
        assert matching_paths(named, AllowedRoots(allowed=(str(tmp_path),))) == expected, pattern


def test_pipe_is_refused_without_waiting_for_its_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "is no regular file" in str(refusal(FileSource(path=str(tmp_path / "pipe")), tmp_path))
