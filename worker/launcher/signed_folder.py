"""Values that the nodes of an attempt exchange: files of the run directory, signed with the attempt's token.

Other accounts may be able to write to the folder, for example because the site's umask lets a group write. A value
without the signature, or in anything but a regular file, is treated as absent.
"""

import hashlib
import hmac
import json
import os
from pathlib import Path
from urllib.parse import quote, unquote

from trainyard.contract.layout import AttemptLayout, write_atomic
from worker.core.small_files import read_small_file

_DIGEST_BYTES = hashlib.sha256().digest_size
_MAX_BYTES = 1 << 20


class SignedFolder:
    """Named values. A value is never changed after it has been written, and each node writes names of its own."""

    @classmethod
    def of_nodes(cls, layout: AttemptLayout, scheduler_id: str) -> "SignedFolder":
        """Return the folder through which the nodes of a scheduler job meet."""
        return cls(layout.nodes(scheduler_id), layout.token.read_bytes().strip())

    def __init__(self, folder: Path, token: bytes) -> None:
        self._folder = folder
        self._key = hmac.digest(token, b"values of the nodes", "sha256")

    def write(self, name: str, value: str) -> None:
        """Write a value, readable by the owner alone.

        Raises:
            ValueError: the value is too long to be read.
        """
        data = value.encode()
        if len(data) > _MAX_BYTES:
            raise ValueError(f"the value {name!r} has {len(data)} bytes, and nodes exchange at most {_MAX_BYTES}")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self._folder / quote(name, safe=""), self._sign(name, data) + data, mode=0o600)

    def read(self, name: str) -> str | None:
        """Return the value, or None if it is absent, cannot be read, or is not signed for this name."""
        try:
            content = read_small_file(self._folder / quote(name, safe=""), _DIGEST_BYTES + _MAX_BYTES)
        except OSError:
            # Listing the folder makes a network filesystem refresh its cache, for the next call.
            self.names()
            return None
        signature, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return data.decode() if hmac.compare_digest(signature, self._sign(name, data)) else None

    def names(self, prefix: str = "") -> set[str]:
        """Return the names that begin with `prefix`, whose values may be unsigned; none if they cannot be listed."""
        try:
            entries = os.listdir(self._folder)
        except OSError:
            return set()
        return {name for entry in entries if (name := unquote(entry)).startswith(prefix)}

    def _sign(self, name: str, data: bytes) -> bytes:
        # The signature covers the folder's name, so values of the attempt's other scheduler jobs are invalid here.
        header = json.dumps([self._folder.name, name]).encode()
        return hmac.digest(self._key, header + b"\n" + data, "sha256")
