"""The Unix accounts of users: whom an administrator links, and as whom a user's jobs run."""

from datetime import datetime

from sqlalchemy.orm import Session

from service.auth.repository import TokenRepository, UnixUserRepository
from service.auth.token_service import RESERVED_NAMES
from service.auth.unix_accounts import AccountLookup
from service.core.errors import InvalidRequestError, NotFoundError, PermissionDeniedError
from service.core.settings import RunAs
from service.db.engine import Database
from service.db.models import UnixUser


def link(database: Database, accounts: AccountLookup, name: str, now: datetime) -> UnixUser:
    """Have a user's name belong to the Unix account of this name, as the service's machine knows it now.

    A name that belonged to another uid loses the tokens of its sign-ins, and so does another name of this uid.

    Raises:
        InvalidRequestError: the name is reserved.
        NotFoundError: there is no such account.
    """
    if name.lower() in RESERVED_NAMES:
        raise InvalidRequestError(f"`{name}` is reserved for the service", param="user_name", code="reserved_name")
    uid = accounts.uid(name)
    if uid is None:
        message = f"the service's machine has no Unix account {name!r}"
        raise NotFoundError(message, code="unix_user_not_found", param="user_name")
    with database.write() as session:
        users, tokens = UnixUserRepository(session), TokenRepository(session)
        for other in users.conflicting(name, uid):
            tokens.revoke_sign_ins(other.name, now, role="", limit=0)
            users.remove(other)
        users.add_new(database, name, uid, now)
        return users.require(name)


def job_account(session: Session, name: str, run_as: RunAs) -> int | None:
    """Return the uid as which jobs that the user submits run; None: the service's account.

    Raises:
        PermissionDeniedError: jobs run as their owners, and this user has no Unix account.
    """
    if run_as == "service":
        return None
    uid = UnixUserRepository(session).uid(name)
    if uid is None:
        raise PermissionDeniedError(
            f"jobs run as the Unix account of their owner, and the user `{name}` has none: sign in with `trainyard "
            f"login` on a machine of the cluster, or ask an administrator for: trainyard tokens link {name}",
            code="unix_account_required",
        )
    return uid
