"""Workers read uploaded files by digest, wherever the allowed roots are."""

from pathlib import Path

import pytest

from trainyard.contract.allowed_roots import AllowedRoots, OutsideRootsError
from trainyard.contract.data_files import data_file
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from worker.core.errors import RefusedError
from worker.data.notices import Notice
from worker.data.uploaded import UploadNames, locate_uploads

DIGEST, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def spec_of(**data: object) -> TrainingSpec:
    model = {"source": "builtin", "name": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16}
    named = {"source": "file", "id": "file_" + "0" * 26, "digest": DIGEST, **data}
    named = {name: value for name, value in named.items() if value is not None}
    return parse_spec({"task": "causal_lm", "model": model, "data": named, "steps": 1})


def test_files_are_located_and_allowed_although_the_runs_are_excluded(tmp_path: Path) -> None:
    for digest in (DIGEST, OTHER):
        path = data_file(tmp_path, digest)
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    roots = AllowedRoots(allowed=("/models",), excluded=(str(tmp_path),))
    spec = spec_of(eval_id="file_" + "1" * 26, eval_digest=OTHER, format="text", packing=False)
    located, allowed = locate_uploads(spec, roots, tmp_path)
    assert (located.data.path, located.data.eval_path) == (
        str(data_file(tmp_path, DIGEST)),
        str(data_file(tmp_path, OTHER)),
    )
    assert (located.data.format, located.data.packing) == ("text", False)
    assert allowed.resolve(data_file(tmp_path, DIGEST))
    secret = tmp_path / "files" / "other.jsonl"
    secret.write_text("")
    with pytest.raises(OutsideRootsError):
        allowed.resolve(secret)


def store(runs: Path, *digests: str) -> None:
    for digest in digests:
        path = data_file(runs, digest)
        path.parent.mkdir(exist_ok=True)
        path.write_text("")


def test_uploads_of_a_mixture_and_of_evaluation_sets_are_located(tmp_path: Path) -> None:
    store(tmp_path, DIGEST, OTHER)
    upload = {"source": "file", "id": "file_" + "0" * 26}
    sources = [{**upload, "digest": DIGEST, "weight": 2, "name": "mine", "format": "text"}, {"path": "/data/a.jsonl"}]
    sets = {"held": {**upload, "digest": OTHER, "format": "completion"}, "old": "/data/old.jsonl"}
    spec = spec_of(source="mixture", sources=sources, eval_sets=sets, id=None, digest=None)
    located, allowed = locate_uploads(spec, AllowedRoots(allowed=("/data",)), tmp_path)
    first, second = located.data.sources
    mine = (first.source, first.path, first.weight, first.name, first.format)
    assert mine == ("jsonl", str(data_file(tmp_path, DIGEST)), 2, "mine", "text")
    assert second == spec.data.sources[1]
    held, old = located.data.evaluation_sources.values()
    assert (held.path, held.format) == (str(data_file(tmp_path, OTHER)), "completion")
    assert (old.source, old.path, old.format) == ("jsonl", "/data/old.jsonl", "text")
    assert set(allowed.allowed) == {"/data", str(data_file(tmp_path, DIGEST)), str(data_file(tmp_path, OTHER))}


@pytest.mark.parametrize("field", ["data.sources.0.id", "data.eval_sets.held.id"])
def test_each_removed_content_is_named(field: str, tmp_path: Path) -> None:
    store(tmp_path, DIGEST if field.startswith("data.eval") else OTHER)
    upload = {"source": "file", "id": "file_" + "0" * 26}
    spec = spec_of(
        source="mixture",
        sources=[{**upload, "digest": DIGEST}],
        eval_sets={"held": {**upload, "digest": OTHER}},
        **dict.fromkeys(("id", "digest")),
    )
    with pytest.raises(RefusedError, match=rf"^{field}: file file_0000.* was deleted"):
        locate_uploads(spec, AllowedRoots(), tmp_path)


def test_removed_content_is_reported_by_the_id(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"data\.id: file file_0000.* was deleted"):
        locate_uploads(spec_of(), AllowedRoots(), tmp_path)


def test_forks_compare_contents_and_not_ids() -> None:
    one, same = spec_of().data, spec_of(id="file_" + "3" * 26).data
    assert one.training_part() == same.training_part()
    assert one.training_part() != spec_of(digest=OTHER).data.training_part()


class TestNames:
    def names(self, tmp_path: Path) -> UploadNames:
        spec = spec_of(eval_id="file_" + "1" * 26, eval_digest=OTHER)
        return UploadNames.of(spec, tmp_path)

    def test_error_has_field_and_id_instead_of_the_path(self, tmp_path: Path) -> None:
        path = data_file(tmp_path, DIGEST)
        with pytest.raises(RefusedError) as caught, self.names(tmp_path).in_errors():
            raise RefusedError(f"data.path: {path}, line 3 is not JSON", "Correct it.")
        assert str(caught.value) == f"data.id: file file_{'0' * 26}, line 3 is not JSON"
        assert caught.value.hint == "Correct it."

    def test_same_content_for_training_and_evaluation_keeps_both_fields(self, tmp_path: Path) -> None:
        names = UploadNames.of(spec_of(eval_id="file_" + "1" * 26, eval_digest=DIGEST), tmp_path)
        for field, file_id in (("", "0" * 26), ("eval_", "1" * 26)):
            text = f"data.{field}path: {data_file(tmp_path, DIGEST)} is bad"
            assert names.text(text) == f"data.{field}id: file file_{file_id} is bad"

    def test_notice_has_the_id_in_its_data_too(self, tmp_path: Path) -> None:
        path = str(data_file(tmp_path, OTHER))
        notice = Notice("bad", "data.eval_path: 1 bad line", data={"first": [{"file": path, "line": 1}], "skipped": 1})
        made = self.names(tmp_path).notice(notice)
        assert made.message == "data.eval_id: 1 bad line"
        assert made.data == {"first": [{"file": f"file file_{'1' * 26}", "line": 1}], "skipped": 1}

    def test_spec_without_text_has_no_names(self, tmp_path: Path) -> None:
        spec = parse_spec({"task": "comm_check", "gpus": 1})
        assert UploadNames.of(spec, tmp_path).text("data.path: x") == "data.path: x"
