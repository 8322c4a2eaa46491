"""The translation of obstore's errors to the project's own.

Only status and code are taken from the text of an obstore error: its URL may contain a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import (
    AccessDenied,
    CredentialsRefused,
    FormatTooNew,
    RemoteObjectInvalid,
    RemoteObjectMissing,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

_STATUS = re.compile(r"status(?: code:)? (\d{3})\b")
#: The error code in a response, and the code of one object in a response about several deletions.
_CODE = re.compile(r"<Code>(\w{1,64})</Code>|\(code: (\w{1,64})\)")
#: How Rust prints ENOSPC.
_NO_SPACE = "os error 28"
#: How obstore reports that the response to a range request was the whole object.
_NO_RANGE = "non-partial response"
#: How obstore's stores without HTTP report a range outside of the object.
_OUTSIDE = re.compile(r"[Ii]nvalid range|range was invalid")
#: How obstore reports a timeout.
_SILENT = re.compile(r"\bTimedOut\b|\bTimeout\b|timed out")
_TRY_AGAIN = frozenset({408, 409, 425, 429})
_NO_ACCESS = frozenset({401, 403})
_CLOCK_CODES = frozenset({"RequestTimeTooSkewed", "AuthenticationFailed"})
_EXPIRED_CODES = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "TokenRefreshRequired",
        "ExpiredAuthenticationToken",
    }
)
_UNKNOWN_CODES = frozenset(
    {"InvalidAccessKeyId", "InvalidToken", "InvalidClientTokenId", "SignatureDoesNotMatch"}
    | {"InvalidAuthenticationInfo", "AuthenticationFailed"}
)
#: Codes for one object that may not be deleted, in a response about several.
_FORBIDDEN_CODES = frozenset({"AccessDenied", "ObjectLocked", "InvalidRequest", "MethodNotAllowed"})


@contextmanager
def of_the_whole_remote() -> Iterator[None]:
    """Replace errors about objects that every upload needs (key, epoch, indexes) by StoreUnavailable: no snapshot caused them."""
    try:
        yield
    except (RemoteObjectInvalid, RemoteObjectMissing, FormatTooNew) as error:
        raise StoreUnavailable(error.message, hint=error.hint, details=error.details) from error


def denied(remote: str, name: str, said: str) -> AccessDenied:
    """Return the error for a request about `name` that was denied."""
    code = _code(said)
    if code in _EXPIRED_CODES:
        return CredentialsRefused(
            f"The credentials for remote {remote} have expired.",
            hint="Renew them at their source; they are read again at the next attempt. Credentials in the environment of a running program"
            " do not change: restart it.",
            details=code,
        )
    hint = "Check the credentials and their rights: put, get, list and delete below the prefix."
    if code in _CLOCK_CODES:
        hint += " A clock that is wrong by minutes causes the same error."
    if code in _UNKNOWN_CODES:
        return CredentialsRefused(
            f"Remote {remote} denies access: it rejects these credentials.",
            hint=f"{hint} Renewed credentials are read again at the next attempt.",
            details=code,
        )
    return AccessDenied(f"Remote {remote} denies access to {name}.", hint=hint, details=code)


def failed(remote: str, name: str, said: str) -> StoreError:
    """Return the error for a request about `name` that failed."""
    status, code = _STATUS.search(said), _code(said)
    number = int(status[1]) if status else 0
    if number in _NO_ACCESS or code in _EXPIRED_CODES or (not number and code in _FORBIDDEN_CODES):
        return denied(remote, name, said)
    details = " ".join([f"status {number}"] * bool(number) + [code] * bool(code))
    if _NO_SPACE in said:
        return StoreFull(f"The disk of remote {remote} is full.")
    if invalid := _invalid(remote, name, said, number):
        return RemoteObjectInvalid(invalid, details=details)
    if not details and _SILENT.search(said):
        return StoreUnavailable(
            f"Remote {remote} does not respond.",
            hint="Check the network, and whether a firewall or proxy between this machine and the remote drops packets.",
            details=name,
        )
    return StoreUnavailable(
        f"Remote {remote} cannot be reached, or failed at {name}.",
        hint="Check the network and the URL of the remote. Nothing that was uploaded is lost.",
        details=details or said.partition("\n")[0].rpartition(" - ")[2][:200],
    )


def _invalid(remote: str, name: str, said: str, status: int) -> str:
    if _NO_RANGE in said:
        return f"Remote {remote} does not support range requests."
    if _OUTSIDE.search(said):
        return f"{name} in remote {remote} is shorter than it should be."
    is_refused = 400 <= status < 500 and status not in _TRY_AGAIN
    return f"Remote {remote} refuses the request for {name}." if is_refused else ""


def _code(said: str) -> str:
    found = _CODE.search(said)
    return (found[1] or found[2]) if found else ""
