"""Why a sign-in by the provider fails. Each message is a sentence with a remedy, without texts of the provider."""

from collections.abc import Mapping

from service.core.errors import PermissionDeniedError, ServiceError


class ProviderError(ServiceError):
    """The provider does not answer, or answers other than OpenID Connect permits."""

    status = 502
    type = "server_error"
    code = "provider"


class SignInFailedError(ServiceError):
    """The sign-in cannot be continued; another one may succeed."""

    status = 400
    type = "invalid_request_error"
    code = "sign_in_failed"


class SignInRefusedError(PermissionDeniedError):
    """The provider has stated who it is, and this service refuses the user."""

    code = "sign_in_refused"


_REFUSALS: Mapping[str, str] = {
    "access_denied": "the sign-in was cancelled, or the provider does not permit you to use this service: sign in "
    "again, or ask an administrator of the provider",
    "login_required": "the provider needs you to sign in there: sign in again",
    "interaction_required": "the provider needs you to sign in there: sign in again",
    "consent_required": "the provider needs your consent to continue: sign in again and give it",
    "temporarily_unavailable": "the provider is overloaded or in maintenance: sign in again later",
    "server_error": "the provider has failed: sign in again later",
    "invalid_scope": "the provider does not know a scope that the service requests: an administrator must correct "
    "TRAINYARD_OIDC_SCOPES",
    "unauthorized_client": "the provider does not let this service sign users in: an administrator must register it "
    "there",
}
"""Messages by the codes of RFC 6749 and OpenID Connect."""


def refusal_of(code: str) -> SignInFailedError:
    """Return the error about the code by which a provider answers instead of signing a user in."""
    message = _REFUSALS.get(code, "the provider has refused the sign-in: sign in again, or ask an administrator")
    return SignInFailedError(message, code=code if code in _REFUSALS else "provider_refused")


def as_sentence(error: ServiceError) -> str:
    """Return the message for the sign-in page."""
    return f"{error.message[:1].upper()}{error.message[1:].removesuffix('.')}."
