"""The command `jupyter gpuckpt doctor`, which reports what works on this machine, what does not, and how to fix it.

It works without the daemon, and says if one runs that does not answer.
"""

from __future__ import annotations

from argparse import Namespace
from importlib import resources

from ..errors import DaemonSilent, GpuCkptError, HostError
from ..wire import calls
from ..wire.protocol import Check, HostReport
from ..wire.statuses import exit_code
from . import printing


def run(args: Namespace) -> int:
    """Print the report, or one of the files that it mentions; return the status of the error if kernels cannot be saved."""
    if args.seccomp or args.apparmor:
        printing.say(_profile("seccomp.json" if args.seccomp else "apparmor"))
        return 0
    from ..client.programs import host_report  # noqa: PLC0415 - too slow for --help

    silence = _silence()
    if silence is not None:
        printing.warn(f"{silence} {silence.hint}")  # now: the report takes a while
    report = host_report()
    if silence is not None:
        check = Check("gpuckptd", False, f"{silence} {silence.hint}", required=True)
        report = HostReport(False, silence.message, silence.hint, [check, *report.checks])
    if args.json:
        printing.say_json({"host": report})
    else:
        _say(report)
    if silence is not None:
        return exit_code(DaemonSilent)
    return 0 if report.engine_available else exit_code(HostError)


def _silence() -> DaemonSilent | None:
    """Return the error if this place's daemon runs, but does not answer."""
    from ..client import starting  # noqa: PLC0415 - too slow for --help

    try:
        starting.require_answer(starting.target(None, start=False), calls.ALIVE_SECONDS)
    except DaemonSilent as error:
        return error
    except GpuCkptError:  # the report names the cause
        return None
    return None


def _say(report: HostReport) -> None:
    printing.say(printing.table(["CHECK", "", "FOUND"], [_row(one) for one in report.checks]))
    fixes: dict[str, list[str]] = {}
    for check in report.checks:
        if check.fix and check.ok is not True:
            fixes.setdefault(check.fix, []).append(check.name)
    for fix, names in fixes.items():
        printing.say(f"\nTo change {', '.join(names)}:\n    {fix}")
        if "gpuckpt-seccomp.json" in fix:
            printing.say(
                "`jupyter gpuckpt doctor --seccomp >gpuckpt-seccomp.json` makes that file."
            )
    printing.say("")
    if report.engine_available:
        printing.say("Kernels can be saved here.")
    else:
        printing.say(f"Kernels cannot be saved here: {report.reason}")


def _row(check: Check) -> list[str]:
    failure = "FAILS" if check.required else "warns"
    return [check.name, {None: "-", True: "ok", False: failure}[check.ok], check.message]


def _profile(name: str) -> str:
    package = resources.files("jupyter_gpuckpt")
    init = str(package.joinpath("engine", "tree", "gpuckpt-init"))
    return package.joinpath("profiles", name).read_text().replace("@INIT@", init).rstrip()
