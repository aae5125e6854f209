"""A model's folder is its owner's: what is wrong with it is told, and nothing of it is believed."""

import json
import os
import struct

import pytest

from service.planner import hf_folder
from service.planner.hf_folder import FolderError, read_folder


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
    return read_folder(str(model), [str(model.parent)])


def refusal(model):
    with pytest.raises(FolderError) as caught:
        read(model)
    return str(caught.value)


def test_what_is_read(model):
    found = read(model)
    assert (found.config, found.tensors["a.weight"].shape, found.bytes) == ({"model_type": "llama"}, (3, 2), 24)


def test_shards_by_the_index(model):
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
def test_an_index_names_files_of_the_folder_only(model, name):
    (model / hf_folder.INDEX).write_text(json.dumps({"weight_map": {"a.weight": name}}))
    assert "is no file of the folder" in refusal(model)


def test_a_folder_outside_of_the_roots(model, tmp_path):
    with pytest.raises(FolderError, match="leads out of the folders"):
        read_folder(str(model), [str(tmp_path / "elsewhere")])


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_link_out_of_the_roots(model, tmp_path, name):
    secret = tmp_path / "secret"
    (model / name).rename(secret)
    (model / name).symlink_to(secret)
    assert "leads out of the folders" in refusal(model)


def test_a_link_inside_of_the_roots_is_followed(model):
    (model / "model.safetensors").rename(model.parent / "blob")
    (model / "model.safetensors").symlink_to(model.parent / "blob")
    assert read(model).bytes == 24


def test_a_pipe_does_not_hold_anyone(model):
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    assert refusal(model) == "config.json is not a regular file"


@pytest.mark.parametrize("text", ["{", "\x00", "[" * 100_000])
def test_a_configuration_that_is_not_json(model, text):
    (model / "config.json").write_text(text)
    assert refusal(model) == "config.json is not valid JSON"


def test_a_configuration_that_is_no_object(model):
    (model / "config.json").write_text("[]")
    assert refusal(model) == "config.json is not a JSON object"


def test_a_configuration_that_is_too_large(model):
    (model / "config.json").write_text(" " * (hf_folder.MAX_CONFIG_BYTES + 1))
    assert refusal(model) == "config.json is larger than 1 MiB"


def test_a_header_of_100_mib_is_not_read(model):
    file = model / "model.safetensors"
    with file.open("wb") as out:
        out.write(struct.pack("<Q", 100 * 2**20))
        out.truncate(101 * 2**20)
    assert refusal(model) == "model.safetensors has a header of 100 MiB, more than is read"


@pytest.mark.parametrize("content", [b"", b"\x01\x00", struct.pack("<Q", 2**63) + b"{}"])
def test_a_file_that_is_none(model, content):
    (model / "model.safetensors").write_bytes(content)
    assert refusal(model) == "model.safetensors is no complete safetensors file"


@pytest.mark.parametrize("text", [b"nonsense", b'{"a": 1}', b'{"a": {"dtype": "F32", "shape": [-1]}}'])
def test_a_broken_header(model, text):
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert "model.safetensors" in refusal(model)


def test_a_file_that_is_cut_short(model):
    write(model / "model.safetensors", {"a.weight": (3, 2)}, cut=4)
    assert refusal(model) == "model.safetensors is shorter than its header says"


def test_no_weights(model):
    (model / "model.safetensors").unlink()
    assert refusal(model) == "there is no *.safetensors file in the folder"


def test_no_folder(model):
    assert "cannot be read: No such file or directory" in refusal(model.parent / "two")
