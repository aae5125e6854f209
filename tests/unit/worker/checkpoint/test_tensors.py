"""The model's tensors of a checkpoint, and indexes that are not those of a checkpoint."""

import os
import pickle
from enum import Enum

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import metadata as index

from tests.support.checkpoints import save_checkpoint
from worker.checkpoint.tensors import IndexFileError, ModelTensors


class Payload:
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


class Attribute:
    def __init__(self, holder, name):
        self.holder, self.name = holder, name

    def __reduce__(self):
        return getattr, (self.holder, self.name)


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
    return module, save_checkpoint(tmp_path, module)


def tensors_of(checkpoint, files=None):
    return ModelTensors(checkpoint, files or [path.name for path in checkpoint.root.iterdir()])


def test_tensors_have_names_shapes_types_and_values_of_the_module(saved):
    module, checkpoint = saved
    tensors, state = tensors_of(checkpoint), module.state_dict()
    assert tensors.shapes == {name: tuple(value.shape) for name, value in state.items()}
    assert tensors.bytes_of("0.weight") == 24
    read = tensors.read(tensors.shapes)
    assert all(read[name].dtype == value.dtype and torch.equal(read[name], value) for name, value in state.items())


def test_an_index_that_calls_a_function_is_refused(saved, tmp_path):
    _, checkpoint = saved
    (checkpoint.root / ".metadata").write_bytes(pickle.dumps(Payload(tmp_path / "made")))
    with pytest.raises(IndexFileError, match=r"its index cannot be read: it refers to posix\.mkdir"):
        tensors_of(checkpoint)
    assert not (tmp_path / "made").exists()


def test_an_index_of_the_first_releases_of_python_3_11_is_read(saved, monkeypatch):
    module, checkpoint = saved
    file = checkpoint.root / ".metadata"
    loaded = pickle.loads(file.read_bytes())
    monkeypatch.setattr(Enum, "__reduce_ex__", lambda self, _protocol: (getattr, (type(self), self.name)))
    file.write_bytes(pickle.dumps(loaded))
    assert b"getattr" in file.read_bytes()
    assert tensors_of(checkpoint).shapes.keys() == module.state_dict().keys()


@pytest.mark.parametrize("name", ["__init__", "__reduce__", "mro"])
def test_an_index_that_refers_to_an_attribute_is_refused(saved, name):
    _, checkpoint = saved
    for holder in (index.Metadata, index._MEM_FORMAT_ENCODING):
        (checkpoint.root / ".metadata").write_bytes(pickle.dumps(Attribute(holder, name)))
        with pytest.raises(IndexFileError, match="an attribute that is no member of an enumeration"):
            tensors_of(checkpoint)


@pytest.mark.parametrize("content", [b"", b"abc", pickle.dumps({"state_dict_metadata": {}}), pickle.dumps(3)])
def test_a_file_that_is_no_index_is_refused(saved, content):
    _, checkpoint = saved
    (checkpoint.root / ".metadata").write_bytes(content)
    with pytest.raises(IndexFileError, match="its index"):
        tensors_of(checkpoint)


def test_an_index_that_names_a_file_outside_of_the_manifest_is_refused(saved):
    _, checkpoint = saved
    with pytest.raises(IndexFileError, match="names a file that is not in the manifest"):
        tensors_of(checkpoint, files=["manifest.json"])
