"""The hub's request to a user's server to suspend all kernels before a deadline."""

from __future__ import annotations

import ssl
from collections.abc import Iterable

import httpx
import msgspec

from .. import decoding
from ..errors import GpuCkptError, HostError

#: The time to wait after the deadline: the server's own limit (`suspend_batch.py`) and some time for the transfer.
_ANSWER_SECONDS = 15.0
_CONNECT_SECONDS = 5.0
_ROUTE = "api/gpuckpt/suspend_all"


# These records have only the fields that the hub reads: servers may have another version of this package.


class Reason(msgspec.Struct, frozen=True):
    """The reason why a kernel was not saved."""

    message: str


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one kernel. `name`: its notebook."""

    saved: bool
    name: str = ""
    kernel_id: str = ""
    error: Reason | None = None


class Report(msgspec.Struct, frozen=True):
    """The outcomes of all kernels."""

    kernels: list[Outcome] = []
    seconds: float = 0.0


async def suspend_all(
    server_url: str,
    tokens: Iterable[str],
    within_seconds: float,
    ssl_context: ssl.SSLContext | None = None,
) -> Report:
    """Request a suspend of all kernels; try the tokens in turn until the server accepts one.

    Raises GpuCkptError with the cause; takes at most 20 s longer than `within_seconds`.
    """
    timeout = httpx.Timeout(within_seconds + _ANSWER_SECONDS, connect=_CONNECT_SECONDS)
    url = server_url.rstrip("/") + "/" + _ROUTE
    try:
        # The request goes directly to the server, neither through the hub's proxy nor through one of the environment.
        async with httpx.AsyncClient(
            timeout=timeout, trust_env=False, verify=ssl_context or False
        ) as http:
            for token in tokens:
                response = await http.post(
                    url,
                    json={"within": within_seconds},
                    headers={"Authorization": f"token {token}"},
                )
                if response.status_code not in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
                    return _answer(response)
    except httpx.TimeoutException as error:
        raise GpuCkptError("The server did not answer in time.") from error
    except httpx.HTTPError as error:
        raise GpuCkptError(f"The server cannot be reached: {error or type(error).__name__}.") from (
            error
        )
    raise GpuCkptError(
        "The server does not accept the hub's token.",
        hint="The server's owner needs the scope access:servers for it.",
    )


def _answer(response: httpx.Response) -> Report:
    if response.status_code == httpx.codes.NOT_FOUND:
        raise HostError(
            "The server has no jupyter-gpuckpt.", hint="Install it where the servers run."
        )
    try:
        if response.is_success:
            return decoding.from_json(response.content, Report)
        reason = decoding.from_json(response.content, Reason).message
    except msgspec.DecodeError:
        reason = f"status {response.status_code}"
    raise GpuCkptError(f"The server cannot suspend its kernels: {reason}")
