"""Commands about remotes for the command line, done by a separate process without a daemon."""

from __future__ import annotations

import subprocess

import msgspec

from ..errors import DaemonUnavailable
from ..wire import decoding
from ..wire.remote_records import RemoteAnswer, RemoteCall
from . import programs


def ask(call: RemoteCall) -> RemoteAnswer:
    """Run `call` in a process with our credentials; the answer holds its errors. Raises DaemonUnavailable if it cannot run."""
    command = programs.command("daemon.remotes.without_daemon")
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            command, input=msgspec.json.encode(call), capture_output=True, check=True
        )
        return decoding.from_json(done.stdout, RemoteAnswer)
    except (OSError, subprocess.CalledProcessError, msgspec.DecodeError) as error:
        errors = getattr(error, "stderr", None) or b""
        status = getattr(error, "returncode", None)
        why = type(error).__name__ if status is None else f"their program ended with {status}"
        raise DaemonUnavailable(
            f"Remotes cannot be used: {why}.",
            hint=programs.REINSTALL,
            details=errors.decode(errors="replace").strip(),
        ) from error
