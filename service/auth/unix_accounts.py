"""Unix accounts and groups, as the name service of this machine knows them."""

import grp
import os
import pwd
from dataclasses import dataclass
from typing import Protocol

from service.core.errors import UnavailableError


@dataclass(frozen=True)
class UnixAccount:
    """One account."""

    uid: int
    name: str
    groups: frozenset[str]
    """Names of those requested groups that the account is a member of."""


class AccountLookup(Protocol):
    """Looks up accounts."""

    def require_groups(self, groups: frozenset[str]) -> None:
        """Check that groups exist. Raises UnavailableError: a group does not exist."""

    def by_uid(self, uid: int, groups: frozenset[str]) -> UnixAccount | None:
        """Return the account with this uid; None if there is none, or if its name leads to another uid.

        Args:
            groups: The groups of which membership is looked up.

        Raises:
            UnavailableError: a group does not exist.
        """

    def uid(self, name: str) -> int | None:
        """Return the uid of the account with this name; None if there is none."""


class NameService:
    """The account database of this machine (`nsswitch.conf`)."""

    def require_groups(self, groups: frozenset[str]) -> None:
        for name in groups:
            _group_number(name)

    def by_uid(self, uid: int, groups: frozenset[str]) -> UnixAccount | None:
        numbers = {name: _group_number(name) for name in groups}
        try:
            entry = pwd.getpwuid(uid)
            if pwd.getpwnam(entry.pw_name).pw_uid != uid:
                return None
        except (KeyError, OverflowError):
            return None
        members = set(os.getgrouplist(entry.pw_name, entry.pw_gid))
        return UnixAccount(uid, entry.pw_name, frozenset(name for name, gid in numbers.items() if gid in members))

    def uid(self, name: str) -> int | None:
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            return None


def _group_number(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise UnavailableError(
            f"the Unix group `{name}` of the service's settings does not exist on its machine", code="unknown_group"
        ) from None
