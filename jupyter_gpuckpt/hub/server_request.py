"""The one question that the hub asks a user's server: suspend all your kernels within a time."""

from __future__ import annotations

import ssl
from collections.abc import Iterable

import httpx
import msgspec

from .. import decoding
from ..errors import GpuCkptError, HostError

#: The server answers this much after the deadline at the latest (`client/batch.py`), and some time goes for the rest.
_ANSWER_SECONDS = 15.0
_CONNECT_SECONDS = 5.0
_ROUTE = "api/gpuckpt/suspend_all"


# What the hub reads of the answer, and no more: the servers may have another version of this package.


class Reason(msgspec.Struct, frozen=True):
    """Why a kernel was not saved."""

    message: str


class Outcome(msgspec.Struct, frozen=True):
    """What became of a kernel. `name`: its notebook."""

    saved: bool
    name: str = ""
    kernel_id: str = ""
    error: Reason | None = None


class Report(msgspec.Struct, frozen=True):
    """What became of all of them."""

    kernels: list[Outcome] = []
    seconds: float = 0.0


async def suspend_all(
    server_url: str,
    tokens: Iterable[str],
    within_seconds: float,
    ssl_context: ssl.SSLContext | None = None,
) -> Report:
    """Ask; the tokens are tried one after the other until the server accepts one.

    Raises GpuCkptError with what went wrong; takes at most 20 s longer than `within_seconds`.
    """
    timeout = httpx.Timeout(within_seconds + _ANSWER_SECONDS, connect=_CONNECT_SECONDS)
    url = server_url.rstrip("/") + "/" + _ROUTE
    try:
        # The server is asked directly: neither the hub's proxy nor one of the environment is between.
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
