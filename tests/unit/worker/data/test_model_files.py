"""The private folder of a model's files: what is in it, what is refused, and when it is removed."""

import gc
import json
import multiprocessing
import os
import stat

import pytest

from trainyard.contract.allowed_roots import AllowedRoots
from worker.core.errors import RefusedError
from worker.data import model_files
from worker.data.model_files import INDEX, ModelFiles, remove_private_folders


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@pytest.fixture
def model(root):
    folder = root / "model"
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin", "modeling.py"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "admin_token"
    path.write_text("secret")
    return path


def opened(model):
    return ModelFiles(str(model), AllowedRoots(allowed=(str(model.parent),)))


def refusal(model):
    with pytest.raises(RefusedError) as caught:
        opened(model)
    return str(caught.value)


def test_only_files_that_loaders_read_are_in_the_private_folder(model):
    (model / ".cache").mkdir()
    (model / "chat_template.jinja").write_text("x")
    (model / "additional_chat_templates").mkdir()
    for name in ("tool.jinja", "other.txt"):
        (model / "additional_chat_templates" / name).write_text("x")
    os.mkfifo(model / "vocab.txt")
    files = opened(model)
    folder = files.folder
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    described = {"config.json", "tokenizer.json", "chat_template.jinja", "additional_chat_templates/tool.jinja"}
    assert names == {*described, "model.safetensors"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_linked_folder_of_templates_is_checked_file_by_file(model, root, secret):
    (root / "templates").mkdir()
    (root / "templates" / "own.jinja").write_text("own")
    (model / "additional_chat_templates").symlink_to(root / "templates")
    files = opened(model)
    assert (files.folder / "additional_chat_templates" / "own.jinja").read_text() == "own"
    (root / "templates" / "x.jinja").symlink_to(secret)
    assert f"model.path: {model}/additional_chat_templates/x.jinja leads out of the folders" in refusal(model)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "additional_chat_templates"])
def test_link_that_replaces_a_file_during_the_check_is_refused(model, tmp_path, secret, monkeypatch, name):
    """The real path that is checked is that of the open file."""
    (model / "additional_chat_templates").mkdir()
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "x.jinja").write_text("secret")
    opening = os.open

    def replace_and_open(path, *arguments, **options):
        if path == name:
            (model / name).rename(tmp_path / "old")
            (model / name).symlink_to(secrets if name == "additional_chat_templates" else secret)
        return opening(path, *arguments, **options)

    monkeypatch.setattr("os.open", replace_and_open)
    assert f"{model}/{name} leads out of the folders" in refusal(model)


def test_links_of_a_cache_are_followed_below_the_root(root, model):
    snapshot, blobs = root / "snapshots" / "1", root / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).rename(blobs / name[:3])
        (snapshot / name).symlink_to(f"../../blobs/{name[:3]}")
    files = ModelFiles(str(snapshot), AllowedRoots(allowed=(str(root),)))
    assert [(files.folder / name).read_text() for name in ("config.json", "model.safetensors")] == ["{}", "{}"]


def test_weights_stay_those_that_were_opened(model, secret):
    files = opened(model)
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to(secret)
    assert (files.folder / "model.safetensors").read_text() == "{}"


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "processor_config.json"])
def test_arguments_of_classes_are_no_paths(model, name):
    paths = {"vocab": "/x", "merges": "/x", "vocab_file": "/x", "source_spm": "/x", "init_inputs": ["/x"]}
    stored = {"eos_token": "</s>", "fast_tokenizer_files": ["../../x/tokenizer.4.0.json"], **paths}
    (model / name).write_text(json.dumps(stored))
    files = opened(model)
    assert json.loads((files.folder / name).read_text()) == {"eos_token": "</s>"}


def test_map_of_special_tokens_has_tokens_alone(model):
    (model / "special_tokens_map.json").write_text('{"eos_token": "a", "anything": "/x"}')
    files = opened(model)
    assert json.loads((files.folder / "special_tokens_map.json").read_text()) == {"eos_token": "a"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.json", "/x"),
        ("tokenizer.json", {"model": {"type": "WordPiece", "vocab": "/x"}}),
        ("tokenizer.json", {"model": {"type": "BPE", "vocab": {}, "merges": "/x"}}),
    ],
)
def test_text_instead_of_a_vocabulary_is_refused(model, name, content):
    (model / name).write_text(json.dumps(content))
    assert f"has a {name} with a text instead of a vocabulary" in refusal(model)


def test_deeply_nested_file_is_refused(model):
    (model / "tokenizer.json").write_text("[" * 100_000)
    assert "has a tokenizer.json that is nested too deeply" in refusal(model)


def test_folder_of_an_adapter_is_refused(model):
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    assert "has an adapter_config.json: it is the folder of an adapter" in refusal(model)


def test_index_that_leads_out_is_refused(model):
    (model / INDEX).write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
    assert "names '../x.safetensors', which is no *.safetensors file of it" in refusal(model)


def test_size_of_the_copies_is_limited(model, monkeypatch):
    monkeypatch.setattr(model_files, "_MAX_COPIED_BYTES", 3)
    assert "has more than 3 B of files beside its weights" in refusal(model)


def test_private_folder_ends_with_its_object_or_the_process(model):
    files = opened(model)
    folder = files.folder
    del files
    gc.collect()
    assert not folder.exists()
    files = opened(model)
    remove_private_folders()
    assert not files.folder.exists()


def test_private_folder_ends_with_its_own_process_of_multiprocessing(model):
    files = opened(model)
    held = [files]
    context = multiprocessing.get_context("fork")
    made = context.SimpleQueue()

    def open_and_send():
        held.append(opened(model))
        made.put(held[1].folder)

    child = context.Process(target=open_and_send)
    child.start()
    child.join()
    assert not made.get().exists()
    assert (files.folder / "model.safetensors").read_text() == "{}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transformers_weights", "evil.safetensors.index.json"),
        ("configuration_files", ["config.4.0.0.json"]),
        ("attn_implementation", "someone/kernel"),
    ],
)
def test_configuration_that_names_other_files_is_refused(model, name, value):
    for content in ({name: value}, {"text_config": {name: value}}):
        (model / "config.json").write_text(json.dumps(content))
        assert f"config.json with {name}, which names something outside of it" in refusal(model)


def test_other_indexes_and_configurations_are_left_out(model, secret):
    (model / "config.4.0.0.json").write_text("{}")
    (model / "evil.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": str(secret)}}))
    files = opened(model)
    assert {path.name for path in files.folder.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}


def test_configuration_is_copied_byte_for_byte(model):
    """Its bytes are part of the digest by which an adapter knows its base model."""
    text = '{ "hidden_size": 8,\n  "attn_implementation": "sdpa" }'
    (model / "config.json").write_text(text)
    files = opened(model)
    assert (files.folder / "config.json").read_text() == text
