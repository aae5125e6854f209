"""Encryption of secrets with Fernet (AES-128-CBC and HMAC-SHA-256), bound to their owner and name."""

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from service.core.errors import UnavailableError
from service.core.settings import Settings
from trainyard.contract.layout import create_exclusive

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

_SEPARATOR = "\0"
"""Neither owners nor names contain it."""
_MAX_KEY_BYTES = 1000
_GROUP_AND_OTHERS = 0o077
_CREATE_KEY = 'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'


class SecretKeyError(UnavailableError):
    """The key of the secrets is missing or unusable; the message names the file and the remedy."""

    code = "secrets_key_unavailable"
    # An administrator has to act, so clients do not wait for it.
    headers: Mapping[str, str] = {"Retry-After": "600"}

    def __init__(self, cause: str, remedy: str):
        super().__init__(f"{cause}: {remedy}")
        self.cause, self.remedy = cause, remedy


class SecretCipher:
    """Encrypts and decrypts with the key in a file of mode 0600."""

    def __init__(self, key_file: Path, *, setting: str = ""):
        """
        Args:
            setting: The setting that names the file; errors name it too. Empty: the file is the default file.
        """
        self._key_file = key_file
        self._setting = setting

    @classmethod
    def from_settings(cls, settings: Settings) -> "SecretCipher":
        if settings.secrets_key_file is None:
            return cls(settings.state / "secrets.key")
        return cls(settings.secrets_key_file.expanduser().absolute(), setting="TRAINYARD_SECRETS_KEY_FILE")

    @property
    def has_default_key(self) -> bool:
        """Whether the key file is the service's own, which it may create."""
        return not self._setting

    def create_key(self) -> None:
        """Create the key file unless it exists."""
        from cryptography.fernet import Fernet

        create_exclusive(self._key_file, Fernet.generate_key().decode(), mode=0o600)

    def load_key(self) -> "Fernet":
        """Return the key in the file.

        Raises:
            SecretKeyError: the file is missing, unreadable, readable by other accounts, or has no key.
        """
        # Imported at first use: it takes longer than the rest of the package, and many services store no secret.
        from cryptography.fernet import Fernet

        path, name = self._key_file, self._key_name
        try:
            with path.open("rb") as file:
                mode, text = stat.S_IMODE(path.stat().st_mode), file.read(_MAX_KEY_BYTES).strip()
            key = Fernet(text)
        except FileNotFoundError:
            raise SecretKeyError(f"{name} does not exist", self._remedy) from None
        except OSError as error:
            cause = f"{name} cannot be read ({error.strerror})"
            raise SecretKeyError(cause, "it must be a file that the service's account can read") from None
        except ValueError:
            raise SecretKeyError(f"{name} does not contain a Fernet key", self._remedy) from None
        if mode & _GROUP_AND_OTHERS:
            raise SecretKeyError(f"{name} contains a key but is readable by others", f"chmod 600 {path}")
        return key

    @property
    def _key_name(self) -> str:
        return f"{self._setting}={self._key_file}" if self._setting else str(self._key_file)

    @property
    def _remedy(self) -> str:
        if self._setting:
            return f"name the file with the key; a first key is made with: {_CREATE_KEY}"
        return "restore it from a backup, or delete all users' secrets and store them again"

    def encrypt(self, owner: str, name: str, value: str) -> str:
        """Return the encrypted value. Raises SecretKeyError: the key is missing or unusable."""
        encrypted: bytes = self.load_key().encrypt(_SEPARATOR.join((owner, name, value)).encode())
        return encrypted.decode()

    def decrypt(self, owner: str, name: str, encrypted: str) -> str | None:
        """Return the value; None if it was encrypted with another key, or for another owner or name.

        Raises:
            SecretKeyError: the key is missing or unusable.
        """
        from cryptography.fernet import InvalidToken

        try:
            text = self.load_key().decrypt(encrypted.encode()).decode()
        except InvalidToken:
            return None
        prefix = _SEPARATOR.join((owner, name, ""))
        return text.removeprefix(prefix) if text.startswith(prefix) else None

    def require_readable(self, owner: str, name: str, encrypted: str) -> None:
        """Check that a value can be decrypted.

        Raises:
            SecretKeyError: it was encrypted with another key, or the key is missing or unusable.
        """
        if self.decrypt(owner, name, encrypted) is None:
            cause = f"{self._key_name} is not the key of the secrets that are stored"
            raise SecretKeyError(cause, "restore the former key, or delete all users' secrets and store them again")
