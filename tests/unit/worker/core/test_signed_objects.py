import io
import pickle

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from worker.core.signed_objects import SignedPickler, SignedUnpickler, UnsignedObjectError, sign_objects

KEY = b"k" * 32


class Payload:
    """Raises when it is unpickled, so that a test fails in which that happens."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def signed(value, key=KEY):
    file = io.BytesIO()
    SignedPickler(key, file).dump(value)
    return file.getvalue()


def test_objects_of_the_attempt_are_read():
    assert SignedUnpickler(KEY, io.BytesIO(signed({"a": [1, 2]}))).load() == {"a": [1, 2]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        pickle.dumps(Payload()),
        bytes(32) + pickle.dumps(Payload()),
        signed(Payload(), b"another key"),
        signed(1)[:-1],
        signed(1) + b".",
        bytes([signed(1)[0] ^ 1]) + signed(1)[1:],
    ],
)
def test_nothing_else_is_unpickled(data):
    with pytest.raises(UnsignedObjectError):
        SignedUnpickler(KEY, io.BytesIO(data)).load()


def test_collectives_of_torch_sign_their_objects(monkeypatch):
    for name in ("_pickler", "_unpickler"):
        monkeypatch.setattr(distributed_c10d, name, getattr(distributed_c10d, name))
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        plain, size = distributed_c10d._object_to_tensor({"a": 1}, "cpu", None)
        sign_objects(b"the token")
        box = [None]
        dist.all_gather_object(box, {"a": 1})
        assert box == [{"a": 1}]
        with pytest.raises(UnsignedObjectError):
            distributed_c10d._tensor_to_object(plain, size, None)
    finally:
        dist.destroy_process_group()
