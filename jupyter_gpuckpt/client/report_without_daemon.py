"""The report of this machine without a daemon; it can show why the daemon does not start."""

from __future__ import annotations

import subprocess

import msgspec

from ..errors import DaemonUnavailable
from ..wire import daemon_settings, decoding
from ..wire.protocol import HostReport
from . import programs

#: The timeout: the trial of the engine may stall for a minute before it gives up.
_SECONDS = 120.0


def host_report() -> HostReport:
    """Check this machine with this process's rights, as a daemon started by it would. Raises DaemonUnavailable."""
    settings = msgspec.json.encode(daemon_settings.from_environment()).decode()
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            [*programs.command("daemon.host_report"), settings],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,
            timeout=_SECONDS,
            check=True,
        )
        return decoding.from_json(done.stdout, HostReport)
    except subprocess.CalledProcessError as error:
        errors = error.stderr.decode(errors="replace").strip()
        last = errors.splitlines()[-1] if errors else f"it ended with status {error.returncode}"
        raise DaemonUnavailable(
            f"This machine could not be checked: {last}", hint=programs.REINSTALL, details=errors
        ) from error
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise DaemonUnavailable(
            f"This machine could not be checked: {type(error).__name__}.", hint=programs.REINSTALL
        ) from error
