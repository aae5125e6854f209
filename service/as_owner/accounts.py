"""Whose account the service may act as."""

import os
import pwd
import re
from collections.abc import Callable
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\+-]{0,127}\$?")
"""Names that sudo takes for a user name, and for nothing else."""


class AccountError(Exception):
    """The service cannot act as this account. The message states the remedy."""


class UnknownAccountError(AccountError):
    """This machine does not know the account: it was deleted, or the name service does not answer."""

    def __init__(self, uid: int, message: str) -> None:
        super().__init__(message)
        self.uid = uid


@dataclass(frozen=True)
class Account:
    """A Unix account that owns jobs."""

    uid: int
    gid: int
    name: str
    home: str

    @property
    def groups(self) -> list[int]:
        """All groups of the account."""
        return os.getgrouplist(self.name, self.gid)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that name the account."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


@dataclass(frozen=True)
class Accounts:
    """The accounts that may own jobs, as the name service of this machine knows them."""

    min_uid: int
    """The smallest uid of an owner (TRAINYARD_MUNGE_MIN_UID)."""
    by_uid: Callable[[int], pwd.struct_passwd] = pwd.getpwuid
    by_name: Callable[[str], pwd.struct_passwd] = pwd.getpwnam

    def get(self, uid: int) -> Account:
        """Return the account with this uid. Raises AccountError: there is none, or the service must not act as it."""
        if uid in (0, os.getuid()) or uid < self.min_uid:
            raise AccountError(
                f"no job may run as uid {uid}: it is that of root, of the service, or below "
                f"TRAINYARD_MUNGE_MIN_UID={self.min_uid}. Submit the job again as another user."
            )
        remedy = "Submit the job again after a new sign-in, or ask an administrator for `trainyard tokens link`."
        try:
            entry = self.by_uid(uid)
            named = self.by_name(entry.pw_name).pw_uid
        except (KeyError, OverflowError):
            raise UnknownAccountError(uid, f"this machine has no Unix account with uid {uid}. {remedy}") from None
        if named != uid or not _NAME.fullmatch(entry.pw_name):
            raise AccountError(f"the name {entry.pw_name!r} of uid {uid} is unusable or that of another uid. {remedy}")
        return Account(uid, entry.pw_gid, entry.pw_name, entry.pw_dir)
