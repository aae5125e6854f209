"""`trainyard doctor` reads the file of base models."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.core.settings import Settings
from service.plugins.openai.plugin import models


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folder = tmp_path / "models" / "llama"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "state").mkdir()
    return Settings(state_dir=tmp_path / "state", accelerator="cpu", allowed_roots=str(tmp_path / "models"))


def write(settings: Settings, path: Path | None = None, **entry: Any) -> None:
    folder = path or settings.state.parent / "models" / "llama"
    document = {"models": {"llama": {"path": str(folder), **entry}}}
    (settings.state / "models.yaml").write_text(json.dumps(document))


def test_missing_file_is_an_error_only_if_the_setting_names_it(settings: Settings) -> None:
    assert models(settings).state == "ok"
    named = settings.model_copy(update={"models_file": settings.state / "other.yaml"})
    assert (models(named).state, "TRAINYARD_MODELS_FILE" in str(models(named).fix)) == ("error", True)


@pytest.mark.parametrize("spec", [{"lora_rank": 16}, {"gpus": 8, "strategy": "fsdp", "precision": "bf16"}, {}])
def test_usable_models_are_listed(settings: Settings, spec: dict[str, Any]) -> None:
    write(settings, spec=spec)
    finding = models(settings)
    assert (finding.state, finding.message) == ("ok", f"{settings.state / 'models.yaml'}: llama")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"colour": "blue"}, "models.llama.colour"),
        ({"spec": {"epochs": 3}}, "models.llama.spec: has `epochs`"),
        ({"spec": {"gpus": "two"}}, "llama: spec.gpus"),
        ({"spec": {"colour": "blue"}}, "llama: spec.colour"),
        ({"path": Path("/etc")}, "llama: /etc is outside of TRAINYARD_ALLOWED_ROOTS"),
    ],
)
def test_mistake_is_named_with_file_model_and_field(settings: Settings, entry: dict[str, Any], reason: str) -> None:
    write(settings, **entry)
    finding = models(settings)
    assert finding.state == "error"
    assert finding.message.startswith(str(settings.state / "models.yaml"))
    assert reason in finding.message
    assert "docs/openai.md" in str(finding.fix)


def test_missing_folder_is_an_error_unless_only_the_nodes_have_it(settings: Settings) -> None:
    write(settings, settings.state.parent / "models" / "none")
    assert "models/none does not exist" in models(settings).message
    slurm = settings.model_copy(update={"backend": "slurm"})
    assert models(slurm).state == "ok"


def test_missing_template_is_an_error(settings: Settings) -> None:
    write(settings)
    (settings.state.parent / "models" / "llama" / "chat_template.jinja").unlink()
    assert "no chat template" in models(settings).message
