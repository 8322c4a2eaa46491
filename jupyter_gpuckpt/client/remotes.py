"""Remotes, for doors: a process of the house is asked, without a daemon."""

from __future__ import annotations

import subprocess

import msgspec

from .. import decoding
from ..errors import DaemonUnavailable, error_from
from ..remote_records import RemoteAnswer, RemoteCall
from . import programs


def ask(call: RemoteCall) -> RemoteAnswer:
    """Do what `call` says, with the credentials of this process. Raises what went wrong there, DaemonUnavailable."""
    command = programs.command("daemon.remotes")
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            command, input=msgspec.json.encode(call), capture_output=True, check=True
        )
        answer = decoding.from_json(done.stdout, RemoteAnswer)
    except (OSError, subprocess.CalledProcessError, msgspec.DecodeError) as error:
        said = getattr(error, "stderr", None) or b""
        raise DaemonUnavailable(
            f"Remotes cannot be used: {type(error).__name__}.",
            hint=programs.REINSTALL,
            details=said.decode(errors="replace").strip(),
        ) from error
    if answer.error:
        raise error_from(answer.error)
    return answer
