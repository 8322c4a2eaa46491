"""Programs of this package that the client runs in processes of their own: they work without a daemon."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import DaemonUnavailable
from ..wire import daemon_settings, decoding
from ..wire.protocol import HostReport
from ..wire.remote_records import RemoteAnswer, RemoteCall

_Answer = TypeVar("_Answer")
#: The timeout of a report: the trial of the engine may stall for a minute before it gives up.
_REPORT_SECONDS = 120.0


def command(module: str) -> list[str]:
    """Return the command line that runs a module of this package with this interpreter."""
    # -P: a module in the caller's directory must not shadow one of this package.
    return [sys.executable, "-P", "-m", f"jupyter_gpuckpt.{module}"]


def host_report() -> HostReport:
    """Check this machine with this process's rights, as a daemon started by it would. Raises DaemonUnavailable."""
    settings = msgspec.json.encode(daemon_settings.from_environment()).decode()
    told = [*command("daemon.host_report"), settings]
    options = {"start_new_session": True, "timeout": _REPORT_SECONDS}
    return _answer("This machine could not be checked", HostReport, told, b"", options)


def ask_remotes(call: RemoteCall) -> RemoteAnswer:
    """Run a call about remotes with the caller's credentials and return its answer, which may hold an error. Raises DaemonUnavailable."""
    told = command("daemon.remotes.without_daemon")
    return _answer("Remotes cannot be used", RemoteAnswer, told, msgspec.json.encode(call), {})


def begin_build(name: str, log: Path) -> None:
    """Begin to build a template in a process of its own, which outlives this one. Raises OSError."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("ab") as output:
        started = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [*command("cli"), "template", "rebuild", "--if-needed", name],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # Somebody must ask for its exit status, or it would stay in the table of processes.
    threading.Thread(target=started.wait, name="build", daemon=True).start()


def _answer(
    failure: str, kind: type[_Answer], told: list[str], given: bytes, options: dict[str, Any]
) -> _Answer:
    try:
        done = subprocess.run(told, input=given, capture_output=True, check=True, **options)  # noqa: S603 - our own interpreter and module
        return decoding.from_json(done.stdout, kind)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        errors = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        status = getattr(error, "returncode", None)
        why = type(error).__name__ if status is None else f"it ended with status {status}"
        last = errors.splitlines()[-1] if errors else f"{why}."
        raise DaemonUnavailable(
            f"{failure}: {last}",
            hint="Install jupyter-gpuckpt again: a part of it is missing, or was made for another Python.",
            details=errors,
        ) from error
