"""Reading a model folder, whose files are untrusted input: every defect is reported."""

import json
import os
import shutil
import struct

import pytest

from service.plugins.planner import hf_folder
from service.plugins.planner.hf_folder import FolderError, read_folder
from trainyard.contract.allowed_roots import AllowedRoots


def write(path, tensors, *, cut=0):
    """A safetensors file of zeros."""
    header, offset = {}, 0
    for name, shape in tensors.items():
        size = 4
        for side in shape:
            size *= side
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes((struct.pack("<Q", len(text)) + text + bytes(offset))[: -cut or None])


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "models" / "one"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    write(folder / "model.safetensors", {"a.weight": (3, 2)})
    return folder


def read(model):
    return read_folder(str(model), AllowedRoots(allowed=(str(model.parent),)))


def refusal(model):
    with pytest.raises(FolderError) as caught:
        read(model)
    return str(caught.value)


def test_read_config_and_headers(model):
    result = read(model)
    assert (result.config, result.tensors["a.weight"].shape, result.bytes) == ({"model_type": "llama"}, (3, 2), 24)


def test_index_selects_the_shards(model):
    (model / "model.safetensors").unlink()
    write(model / "m-1.safetensors", {"a.weight": (3, 2)})
    write(model / "m-2.safetensors", {"b.weight": (5,)})
    write(model / "other.safetensors", {"c.weight": (7,)})
    index = {"weight_map": {"a.weight": "m-1.safetensors", "b.weight": "m-2.safetensors"}}
    (model / hf_folder.INDEX).write_text(json.dumps(index))
    assert set(read(model).tensors) == {"a.weight", "b.weight"}
    (model / "m-2.safetensors").unlink()
    assert refusal(model).endswith("m-2.safetensors cannot be read: No such file or directory")


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", ".."])
def test_index_may_name_only_files_of_the_folder(model, name):
    (model / hf_folder.INDEX).write_text(json.dumps({"weight_map": {"a.weight": name}}))
    assert "is no file of the folder" in refusal(model)


def test_folder_outside_of_the_roots_is_rejected(model, tmp_path):
    with pytest.raises(FolderError, match="leads out of the folders"):
        read_folder(str(model), AllowedRoots(allowed=(str(tmp_path / "elsewhere"),)))


def test_hidden_files_are_not_read(model):
    (model / "._model.safetensors").write_bytes(b"resource fork")
    assert set(read(model).tensors) == {"a.weight"}
    (model / hf_folder.INDEX).write_text(json.dumps({"weight_map": {"a.weight": "._model.safetensors"}}))
    assert "has the hidden name `._model.safetensors`" in refusal(model)
    hidden = model.rename(model.parent / ".hidden")
    (model.parent / "link").symlink_to(hidden)
    for name in (".hidden", "link"):
        assert "has the hidden name `.hidden`" in refusal(model.parent / name)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_link_out_of_the_roots_is_rejected(model, tmp_path, name):
    secret = tmp_path / "secret"
    (model / name).rename(secret)
    (model / name).symlink_to(secret)
    assert "leads out of the folders" in refusal(model)


@pytest.mark.parametrize("name", ["", "config.json", "model.safetensors"])
def test_link_that_replaces_a_folder_during_the_check_is_not_followed(model, tmp_path, monkeypatch, name):
    secret = shutil.copytree(model, tmp_path / "secret")
    (secret / "config.json").write_text('{"model_type": "secret"}')
    write(secret / "model.safetensors", {"secret": (3, 2)})
    resolve = AllowedRoots.resolve

    def check_and_replace(roots, path):
        real = resolve(roots, path)
        if real.name == (name or model.name) and not model.is_symlink():
            model.rename(model.parent / "old")
            model.symlink_to(secret)
        return real

    monkeypatch.setattr(AllowedRoots, "resolve", check_and_replace)
    result = read(model)
    assert (result.config, set(result.tensors)) == ({"model_type": "llama"}, {"a.weight"})


def test_link_inside_the_roots_is_followed(model):
    (model / "model.safetensors").rename(model.parent / "blob")
    (model / "model.safetensors").symlink_to(model.parent / "blob")
    assert read(model).bytes == 24


def test_pipe_does_not_block_reading(model):
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    assert refusal(model) == "config.json is not a regular file"


@pytest.mark.parametrize("text", ["{", "\x00", "[" * 100_000])
def test_config_must_be_json(model, text):
    (model / "config.json").write_text(text)
    assert refusal(model) == "config.json is not valid JSON"


def test_config_must_be_an_object(model):
    (model / "config.json").write_text("[]")
    assert refusal(model) == "config.json is not a JSON object"


def test_large_config_is_rejected(model):
    (model / "config.json").write_text(" " * (hf_folder.MAX_CONFIG_BYTES + 1))
    assert refusal(model) == "config.json is larger than 1 MiB"


def test_large_header_is_not_read(model):
    file = model / "model.safetensors"
    with file.open("wb") as out:
        out.write(struct.pack("<Q", 100 * 2**20))
        out.truncate(101 * 2**20)
    assert refusal(model) == "model.safetensors has a header of 100 MiB, more than is read"


@pytest.mark.parametrize("content", [b"", b"\x01\x00", struct.pack("<Q", 2**63) + b"{}"])
def test_non_regular_file_is_rejected(model, content):
    (model / "model.safetensors").write_bytes(content)
    assert refusal(model) == "model.safetensors is no complete safetensors file"


@pytest.mark.parametrize("text", [b"nonsense", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [-1]}}'])
def test_broken_header_is_rejected(model, text):
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert "model.safetensors" in refusal(model)


def test_truncated_file_is_rejected(model):
    write(model / "model.safetensors", {"a.weight": (3, 2)}, cut=4)
    assert refusal(model) == "model.safetensors is shorter than its header says"


def test_folder_without_weights_is_rejected(model):
    (model / "model.safetensors").unlink()
    assert refusal(model) == "there is no *.safetensors file in the folder"


def test_missing_folder_is_rejected(model):
    assert "cannot be read: No such file or directory" in refusal(model.parent / "two")
