"""Workers read uploaded files by digest, wherever the allowed roots are."""

from pathlib import Path

import pytest

from trainyard.contract.allowed_roots import AllowedRoots, OutsideRootsError
from trainyard.contract.data_files import data_file
from trainyard.contract.spec.training_spec import TrainingSpec, parse_spec
from worker.core.errors import RefusedError
from worker.data.uploaded import locate_uploads

DIGEST, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def spec_of(**data: object) -> TrainingSpec:
    model = {"source": "builtin", "name": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16}
    named = {"source": "file", "id": "file_" + "0" * 26, "digest": DIGEST, **data}
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


def test_removed_content_is_reported_by_the_id(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"data\.id: file file_0000.* was deleted"):
        locate_uploads(spec_of(), AllowedRoots(), tmp_path)


def test_forks_compare_contents_and_not_ids() -> None:
    one, same = spec_of().data, spec_of(id="file_" + "3" * 26).data
    assert one.training_part() == same.training_part()
    assert one.training_part() != spec_of(digest=OTHER).data.training_part()
