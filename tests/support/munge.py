"""Stand-ins for munge and the account database, and a real munged."""

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from service.auth.munge import CredentialError, DecodedCredential
from service.auth.unix_accounts import UnixAccount
from service.core.errors import ServiceError, UnavailableError
from tests.support.wait import wait_until

_SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_PR_SET_PDEATHSIG = 1


@dataclass
class FakeMunge:
    """Makes credentials for any uid, and decodes each of them once, as munged does."""

    error: ServiceError | None = None
    """What decoding raises; None decodes."""
    made: dict[str, DecodedCredential] = field(default_factory=dict)
    decoded: list[str] = field(default_factory=list)

    def make(self, uid: int, message: bytes) -> str:
        credential = f"MUNGE:{secrets.token_hex(16)}:"
        self.made[credential] = DecodedCredential(uid, message)
        return credential

    def decode(self, credential: str) -> DecodedCredential:
        if self.error is not None:
            raise self.error
        if credential not in self.made:
            raise CredentialError("malformed", code="invalid_credential")
        if credential in self.decoded:
            raise CredentialError("used before", code="replayed_credential")
        self.decoded.append(credential)
        return self.made[credential]


@dataclass
class FakeAccounts:
    """An account database: uids and groups by name."""

    uids: dict[str, int] = field(default_factory=dict)
    groups: dict[str, set[str]] = field(default_factory=dict)
    """Members by group."""

    def require_groups(self, groups: frozenset[str]) -> None:
        if missing := groups - self.groups.keys():
            raise UnavailableError(f"{missing} missing", code="unknown_group")

    def by_uid(self, uid: int, groups: frozenset[str]) -> UnixAccount | None:
        for name, known in self.uids.items():
            if known == uid:
                return UnixAccount(uid, name, frozenset(one for one in groups if name in self.groups.get(one, ())))
        return None

    def uid(self, name: str) -> int | None:
        return self.uids.get(name)


@contextmanager
def running_munged(folder: Path) -> Iterator[Path]:
    """Run a munged with a key of its own; yield its socket, which every account can use."""
    program = shutil.which("munged", path=_SEARCH)
    assert program is not None, "install the package munge"
    key = folder / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    files = [f"--{part}-file={folder / part}" for part in ("key", "log", "pid", "seed")]
    command = [program, "--foreground", "--force", *files, f"--socket={folder / 'socket'}", "--num-threads=1"]
    libc = ctypes.CDLL(None)
    with (folder / "output").open("wb") as output:
        daemon = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # If the tests are killed, it ends too.
        )
    try:
        wait_until((folder / "socket").exists, 20, f"munged; its output is in {folder / 'output'}")
        yield folder / "socket"
    finally:
        daemon.terminate()
        daemon.wait()
