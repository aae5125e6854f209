"""The description of an export: digests of all files, the input of models that read no text, and the base."""

import hashlib
import json

import torch

from tests.support import hf
from tests.support.checkpoints import export_request, save_checkpoint
from trainyard.contract.model_input import DIGITS, VectorInput
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.exported import EXPORT_NOTE, ExportNote
from worker.core.random_state import seed_generators
from worker.engine.trainable import freeze_parameters
from worker.export.checkpoint import export_checkpoint
from worker.export.description import module_digest
from worker.export.weights import publish_folder
from worker.tasks.builtin_models import build_builtin
from worker.tasks.hf_model import HfFolder

CONVNET = {"task": "image_classification", "model": {"source": "builtin", "name": "convnet", "channels": 4}}
MLP = {"task": "regression", "model": {"source": "builtin", "name": "mlp", "sizes": [4, 8, 3]}}
GPT = {
    "task": "causal_lm",
    "model": {"source": "builtin", "name": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 32},
}


def spec_of(base, data="digits", **changes):
    return parse_spec({**base, "data": {"source": "builtin", "name": data}, "steps": 9, "seed": 4} | changes)


def exported(tmp_path, spec, sources=None):
    seed_generators(spec.seed)
    module = (
        build_builtin(spec.model) if spec.model.source == "builtin" else HfFolder(spec.model.path).load(packed=False)
    )
    freeze_parameters(spec, module)
    checkpoint = save_checkpoint(tmp_path, module, sources=sources)
    export_checkpoint(export_request(checkpoint, spec, tmp_path / "export"), lambda _: None)
    return tmp_path / "export", ExportNote.model_validate_json((tmp_path / "export" / EXPORT_NOTE).read_bytes())


def test_every_other_file_has_its_digest(tmp_path):
    folder, note = exported(tmp_path, spec_of(GPT, "stdlib"))
    assert note.files.keys() == {path.name for path in folder.iterdir()} - {EXPORT_NOTE}
    assert {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    } < note.files.keys()
    for name, file in note.files.items():
        content = (folder / name).read_bytes()
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_input_of_digits_is_that_of_the_training(tmp_path):
    folder, note = exported(tmp_path, spec_of(CONVNET))
    assert note.input == DIGITS
    assert json.loads((folder / "config.json").read_text())["input"]["high"] == 16


def test_input_of_a_perceptron_is_its_width(tmp_path):
    _, note = exported(tmp_path, spec_of(MLP, "parity"))
    assert note.input == VectorInput(size=4, outputs=3)


def test_adapters_name_the_base_that_is_drawn_from_the_seed(tmp_path):
    spec = spec_of(GPT, "stdlib", lora_rank=2)
    _, note = exported(tmp_path, spec)
    seed_generators(spec.seed)
    assert (note.kind, note.base_digest) == ("adapter", module_digest(build_builtin(spec.model)))
    torch.manual_seed(99)
    assert note.base_digest != module_digest(build_builtin(spec.model))


def test_adapters_have_digest_chat_template_and_licence_of_their_base(tmp_path):
    base = hf.save_llama(tmp_path / "llama")
    (base / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    spec = parse_spec(
        {
            "task": "causal_lm",
            "lora_rank": 2,
            "model": {"source": "hf", "path": str(base)},
            "data": {"source": "jsonl", "path": "/data/x.jsonl"},
            "steps": 9,
        }
    )
    folder, note = exported(tmp_path, spec, {"model.path": "1" * 64, "data": "2" * 64})
    assert note.base_digest == "1" * 64
    card = (folder / "README.md").read_text()
    assert 'license: "cc-by-4.0"' in card
    assert "2" * 64 in card
    assert (folder / "chat_template.jinja").read_text() == hf.TEMPLATE


def test_description_is_published_after_the_files_that_it_describes(tmp_path, monkeypatch):
    published = []
    monkeypatch.setattr("worker.export.weights.os.replace", lambda source, _: published.append(source.name))
    with publish_folder(tmp_path / "export") as folder:
        for name in ("zzz.safetensors", EXPORT_NOTE, "config.json"):
            (folder / name).touch()
    assert published == ["config.json", "zzz.safetensors", EXPORT_NOTE]
