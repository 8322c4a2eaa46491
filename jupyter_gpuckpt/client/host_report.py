"""The report of this machine without a daemon: what keeps the daemon from starting may be in it."""

from __future__ import annotations

import subprocess

import msgspec

from .. import daemon_settings, decoding
from ..errors import DaemonUnavailable
from ..protocol import HostReport
from . import programs

#: The trial of the engine waits for a minute where nothing goes on.
_SECONDS = 120.0


def host_report() -> HostReport:
    """Check this machine anew with this process's rights, as a daemon started by it would; raise DaemonUnavailable."""
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
        said = error.stderr.decode(errors="replace").strip()
        last = said.splitlines()[-1] if said else f"it ended with status {error.returncode}"
        raise DaemonUnavailable(
            f"This machine could not be checked: {last}", hint=programs.REINSTALL, details=said
        ) from error
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise DaemonUnavailable(
            f"This machine could not be checked: {type(error).__name__}.", hint=programs.REINSTALL
        ) from error
