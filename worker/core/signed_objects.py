"""Signs the objects that ranks exchange, so that no object of another process is unpickled.

torch sends objects as pickles, for checkpoints too, over sockets of gloo and NCCL that accept every client. A signature
with the attempt's token shows that a rank of the same attempt pickled them.
"""

import hashlib
import hmac
import io
import pickle
from functools import partial
from typing import Any

from torch.distributed import distributed_c10d

_DIGEST_BYTES = hashlib.sha256().digest_size


class UnsignedObjectError(pickle.UnpicklingError):
    """An object came from a process that does not know the attempt's token."""


def sign_objects(token: bytes) -> None:
    """Sign all objects that this process sends in collectives, and refuse those that are not signed."""
    key = hmac.digest(token, b"objects of collectives", "sha256")
    # torch has no public setting for this. It looks both names up at each call.
    module: Any = distributed_c10d
    if not (hasattr(module, "_pickler") and hasattr(module, "_unpickler")):
        raise RuntimeError("this version of torch pickles objects of collectives in another way")
    module._pickler = partial(SignedPickler, key)
    module._unpickler = partial(SignedUnpickler, key)


class SignedPickler:
    """Writes the signature and the pickle of an object."""

    def __init__(self, key: bytes, file: io.BytesIO) -> None:
        self._key = key
        self._file = file

    def dump(self, value: Any) -> None:
        data = pickle.dumps(value)
        self._file.write(hmac.digest(self._key, data, "sha256") + data)


class SignedUnpickler:
    """Reads the output of `SignedPickler`."""

    def __init__(self, key: bytes, file: io.BytesIO) -> None:
        self._key = key
        self._file = file

    def load(self) -> Any:
        """Return the object.

        Raises:
            UnsignedObjectError: The signature does not match the pickle.
        """
        signature, data = self._file.read(_DIGEST_BYTES), self._file.read()
        if not hmac.compare_digest(signature, hmac.digest(self._key, data, "sha256")):
            raise UnsignedObjectError("an object in a collective has no valid signature of this attempt")
        return pickle.loads(data)  # noqa: S301 (its signature is valid)
