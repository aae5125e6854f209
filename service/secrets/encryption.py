"""Encryption of secrets with Fernet (AES-128-CBC and HMAC-SHA-256), bound to their owner and name."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from service.core.private_files import read_secret
from trainyard.contract.layout import create_exclusive

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

_SEPARATOR = "\0"
"""Neither owners nor names contain it."""


class SecretCipher:
    """Encrypts and decrypts with the key in a file of mode 0600."""

    def __init__(self, key_file: Path, *, create: bool):
        """
        Args:
            create: Create the file at first use. Replicas share a file that exists.
        """
        self._key_file = key_file
        self._create = create

    def encrypt(self, owner: str, name: str, value: str) -> str:
        """Return the encrypted value.

        Raises:
            ServiceError: the key file is unreadable, or readable by other accounts.
        """
        encrypted: bytes = self._fernet.encrypt(_SEPARATOR.join((owner, name, value)).encode())
        return encrypted.decode()

    def decrypt(self, owner: str, name: str, encrypted: str) -> str | None:
        """Return the value; None if it was encrypted with another key, or for another owner or name.

        Raises:
            ServiceError: the key file is unreadable, or readable by other accounts.
        """
        from cryptography.fernet import InvalidToken

        try:
            text = self._fernet.decrypt(encrypted.encode()).decode()
        except InvalidToken:
            return None
        prefix = _SEPARATOR.join((owner, name, ""))
        return text.removeprefix(prefix) if text.startswith(prefix) else None

    @cached_property
    def _fernet(self) -> "Fernet":
        # Imported at first use: it takes longer than the rest of the package, and many services store no secret.
        from cryptography.fernet import Fernet

        if self._create:
            create_exclusive(self._key_file, Fernet.generate_key().decode())
        return Fernet(read_secret(self._key_file))
