"""Whose account the service may act as."""

import os
import pwd

import pytest

from service.as_owner.accounts import Account, AccountError, Accounts, UnknownAccountError

ADA = 4711


def entry(name: str, uid: int) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, 100, "", f"/home/{name}", "/bin/sh"))


def lookup(known: dict[str, int]) -> Accounts:
    """Return the accounts of a machine that knows these names."""

    def by_name(name: str) -> pwd.struct_passwd:
        return entry(name, known[name])

    def by_uid(uid: int) -> pwd.struct_passwd:
        return next(iter([entry(name, each) for name, each in known.items() if each == uid]), None) or missing(uid)

    def missing(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    return Accounts(1000, by_uid, by_name)


def test_an_account_has_the_variables_that_name_it() -> None:
    account = lookup({"ada": ADA}).get(ADA)
    assert account == Account(ADA, 100, "ada", "/home/ada")
    assert account.environment == {"HOME": "/home/ada", "USER": "ada", "LOGNAME": "ada"}


@pytest.mark.parametrize("uid", [0, 1, 999, -1, os.getuid()])
def test_no_job_runs_as_root_a_daemon_or_the_service(uid: int) -> None:
    with pytest.raises(AccountError, match="Submit the job again as another user"):
        lookup({"daemon": uid}).get(uid)


def test_the_account_of_an_ordinary_service_owns_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: ADA)
    with pytest.raises(AccountError, match="of the service"):
        lookup({"trainyard": ADA}).get(ADA)


def test_an_unknown_uid_may_become_known_again() -> None:
    with pytest.raises(UnknownAccountError, match="trainyard tokens link") as raised:
        lookup({}).get(ADA)
    assert raised.value.uid == ADA


@pytest.mark.parametrize("name", ["-x", "#0", "%wheel", "a b", "", "a\nb", "ALL,b", "a" * 200])
def test_a_name_that_sudo_could_read_otherwise_is_refused(name: str) -> None:
    with pytest.raises(AccountError, match="unusable"):
        lookup({name: ADA}).get(ADA)


def test_a_name_that_leads_to_another_uid_is_refused() -> None:
    accounts = Accounts(1000, lambda uid: entry("ada", uid), lambda name: entry(name, ADA + 1))
    with pytest.raises(AccountError, match="another uid"):
        accounts.get(ADA)
