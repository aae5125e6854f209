"""Files of artifacts: each name has a file of its own, and names that a file can have stay as they are."""

from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from worker.trackers.artifacts import ArtifactFolder, file_part, logged_part

_NAMES = st.lists(st.text(alphabet=st.characters(exclude_categories=[]), max_size=300), unique=True, max_size=20)


@given(_NAMES)
@example(["λ", "μ", "", "_", "~", ".", "..", ".a", "_.a", "__.a", "a/b", "a\\b", "a_b", "a%2Fb", "50%", "\0", "\udc80"])
@example(["x" * 250, "x" * 251, "😀" * 50, "😀" * 51, "😀" * 52, "e\u0301", "é"])
def test_each_name_is_a_part_of_a_path_of_its_own(names: list[str]) -> None:
    parts = [file_part(name) for name in names]
    assert len(set(parts)) == len(parts)
    for part in parts:
        assert part.isprintable()
        assert 0 < len(part.encode()) <= 200
        assert not {"/", "\\", "%"} & set(part)
        assert not part.startswith(".")
    assert [file_part(name) for name in ("λ", "loss (val)", "_.a", "a,b")] == ["λ", "loss (val)", "_.a", "a,b"]


def test_hidden_files_keep_apart_from_files_of_their_stored_names(tmp_path: Path) -> None:
    artifacts = ArtifactFolder(tmp_path)
    names = [".a", "_.a", "__.a", "_a", "a"]
    for number, name in enumerate(names):
        artifacts.append_line(f"folder/{name}", {"number": number})
    assert [artifacts.read_json(f"folder/{name}")["number"] for name in names] == list(range(len(names)))
    assert sorted(logged_part(path.name) for path in artifacts.entries("folder")) == sorted(names)
