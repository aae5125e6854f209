"""What a folder lacks to be a model for conversations."""

import json
from pathlib import Path

import pytest

from service.plugins.openai.model_folder import folder_problem, needs_template


def problem(folder: Path, *, shared: bool = True, template: bool = True) -> str | None:
    return folder_problem(str(folder), shared=shared, template=template)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


@pytest.mark.parametrize("template", ["{{ messages }}", [{"name": "default", "template": "{{ messages }}"}]])
def test_template_in_the_tokenizer_s_configuration_is_read(folder: Path, template: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert problem(folder) is None


def test_template_in_a_file_of_its_own_is_read(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert problem(folder) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "has no chat template"),
        ("{", "is not JSON"),
        ("[]", "no chat template"),
        (None, "no tokenizer_config.json"),
    ],
)
def test_missing_template_is_a_problem_where_lines_need_one(folder: Path, text: str | None, reason: str) -> None:
    if text is not None:
        (folder / "tokenizer_config.json").write_text(text)
    missing = problem(folder)
    assert missing is not None
    assert reason in missing
    assert problem(folder, template=False) is None


def test_missing_folder_is_a_problem_where_folders_are_shared(tmp_path: Path) -> None:
    assert problem(tmp_path / "none") == f"{tmp_path / 'none'} does not exist"
    assert problem(tmp_path / "none", shared=False) is None
    (tmp_path / "file").touch()
    assert problem(tmp_path / "file", shared=False) == f"{tmp_path / 'file'} is no folder"
    assert problem(tmp_path) == f"{tmp_path} has no config.json"


def test_folder_that_only_the_job_s_account_can_read_is_left_to_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    assert problem(folder) is None


def test_formats_of_messages_need_a_template() -> None:
    needs = {
        format: needs_template(format) for format in ("chat", "sharegpt", "openai_preference", "completion", "text")
    }
    assert [format for format, needed in needs.items() if needed] == ["chat", "sharegpt", "openai_preference"]
