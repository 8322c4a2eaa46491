"""The doctor's report: can kernels be saved on this machine, and if not, what would fix that.

The report is data: the command line, the REST API and the tests use the same one. The checks are in `checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from ..wire.protocol import Check, HostReport
from . import criu_program, doctor_checks


def find_criu() -> Path | None:
    """Return the CRIU program to use: the first of `criu_program.candidates` that is new enough."""
    return criu_program.find()


def report(
    criu: Path | None,
    *,
    init: Path | None = None,
    store: Path | None = None,
    trial: Callable[[], Iterable[Check]] | None = None,
) -> HostReport:
    """Run all checks of this machine and return the report. This takes about 0.1 s without a GPU and never raises.

    `criu` is the result of `find_criu`. `init` is the program that starts kernels, `store` the folder
    of the snapshots (which need not exist yet); checks of those that are None are left out. `trial`
    tries the engine itself (`snapshots.trial`); it runs last, and only if no required check has failed.
    `engine_available` is False if a required check fails; reason and hint are then those of the first.
    """
    found = list(_run_all(doctor_checks.CheckedFiles(criu, init, store)))
    if trial is not None and _failed(found) is None:
        found += _survived("trial", trial)
    failed = _failed(found)
    if failed is None:
        return HostReport(engine_available=True, reason="", hint="", checks=found)
    hint = f"This helps: {failed.fix}" if failed.fix else "`jupyter gpuckpt doctor` shows details."
    return HostReport(engine_available=False, reason=failed.message, hint=hint, checks=found)


def _failed(found: Iterable[Check]) -> Check | None:
    return next((check for check in found if check.required and check.ok is False), None)


def _run_all(files: doctor_checks.CheckedFiles) -> Iterator[Check]:
    for run in doctor_checks.ALL:
        yield from _survived(run.__name__.replace("_", " "), partial(run, files))


def _survived(name: str, run: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    try:
        yield from run()
    except Exception as error:  # a check that raises must not hide the others
        yield Check(name, None, f"Could not be checked: {type(error).__name__}: {error}.")
