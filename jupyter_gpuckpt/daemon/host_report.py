"""The report on this machine: the doctor's checks and a trial of the engine, for the daemon and, without one, the command line.

    python -m jupyter_gpuckpt.daemon.host_report SETTINGS     prints a HostReport as JSON

A successful trial is remembered under a key of all that could change its result: boot, container, user, namespaces, rights,
sysctls, limits, programs. A failed trial is not remembered, because its cause may have been fixed since. Under a seccomp filter
no trial is remembered, because filters cannot be told apart.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from ..engine.gpu.ferry import ferry_trial
from ..engine.settings import CRIU_PRELOAD, INIT, EngineSettings
from ..errors import GpuCkptError
from ..host import (
    criu_program,
    doctor_checks,
    doctor_remedies,
    limits,
    privileges,
    processes,
    trial_memory,
)
from ..host.doctor_checks import CheckedFiles
from ..store import stores
from ..store.damage import damaged_snapshots
from ..wire import daemon_settings, place
from ..wire.daemon_settings import Settings
from ..wire.plurals import counted
from ..wire.protocol import Check, HostReport
from . import lifetime

#: The fields of /proc/self/status on which the result of a trial depends.
_RIGHTS = ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Groups")


def report(settings: Settings, criu: Path | None, *, fresh: bool) -> HostReport:
    """Return the report of all checks. The trial is made unless it has succeeded under the same conditions, or if `fresh`."""

    def tried() -> Iterator[Check]:
        if criu is None:
            return
        remembered = _memory(settings, criu)
        may_be_remembered = not privileges.seccomp_filters()
        if not fresh and may_be_remembered and remembered.exists():
            with suppress(OSError):
                remembered.touch()  # the oldest files are removed
            yield Check("trial", True, "A small program was suspended and resumed.", required=True)
            yield from _gpu_copies(fresh=False)
            return
        from ..snapshots import trial  # noqa: PLC0415 - slow to import, and most daemons find a remembered trial

        results = list(trial.checks(_engine(settings, criu), settings.data))
        if may_be_remembered and all(result.ok for result in results):
            trial_memory.remember(remembered)
        yield from results
        yield from _gpu_copies(fresh=fresh)

    return doctor_checks.report(CheckedFiles(criu, INIT, settings.store), tried)


def find_criu(settings: Settings) -> Path | None:
    """Return the CRIU program that the settings name, else the first that is new enough."""
    return Path(settings.criu) if settings.criu else criu_program.find()


def _engine(settings: Settings, criu: Path) -> EngineSettings:
    return EngineSettings(
        criu=criu,
        spill_dir=settings.data,
        threads=1,
        user_namespace=not privileges.suffice(),
    )


def _memory(settings: Settings, criu: Path) -> Path:
    """Return the path of the file that exists if a trial succeeded under the present conditions."""
    status = processes.status(os.getpid())
    files = [criu, INIT, CRIU_PRELOAD, Path(sys.executable)]
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    circumstances = [
        # Data directories on the same disk count as equal.
        msgspec.structs.replace(place.this_place(settings.data), data_dir="").key,
        settings.data.stat().st_dev,
        # Linux reuses the numbers of a container's namespaces for the next one.
        processes.start_time(1),
        [status.get(name, "") for name in _RIGHTS],
        [privileges.masked_proc(), *doctor_remedies.switches()],
        limits.descriptors()[1],
        [(str(file), (found := file.stat()).st_size, found.st_mtime_ns) for file in files],
    ]
    return trial_memory.file("trials", circumstances)


def _gpu_copies(*, fresh: bool) -> Iterator[Check]:
    """Yield a check of who copies GPU memory in kernels with the default of the option `gpu_copy`; none where that is not known.

    Only a fresh report tries it, because it takes seconds on a machine with a GPU.
    """
    found = ferry_trial.made() if fresh else ferry_trial.remembered()
    if found is None:
        return
    message = (
        "GPU memory stays on the GPU during a save: it was handed over and back, and compared."
    )
    if not found.works:
        message = f"The driver copies GPU memory for every save, because {found.reason}."
    yield Check("gpu copies", found.works, message)


def _runtime_directory(settings: Settings) -> Check:
    try:
        directory = place.runtime_dir(settings.data)
        place.socket_path(place.this_place(settings.data), directory)
    except GpuCkptError as error:
        return Check("runtime directory", False, error.message, error.hint, required=True)
    return Check("runtime directory", True, f"The daemon listens in {directory}.", required=True)


def damage(settings: Settings) -> Iterator[Check]:
    """Yield a check of what the daemons found when they read the stored snapshots; none if there is no store."""
    roots = stores.all_of(settings.store)
    damaged = [snapshot_id for root in roots for snapshot_id in damaged_snapshots(root)]
    if damaged:
        message = f"{counted(len(damaged), 'snapshot')} cannot be resumed, because chunks are damaged or missing: {', '.join(damaged)}."
        yield Check("snapshots", False, message, "jupyter gpuckpt verify")
    elif roots:
        yield Check("snapshots", True, "No damage is known.")


def main() -> int:
    """Print the report for the settings in the only argument."""
    settings = daemon_settings.from_json(sys.argv[1])
    lifetime.become_parent_of_orphans()
    found = report(settings, find_criu(settings), fresh=True)
    runtime = _runtime_directory(settings)
    if runtime.ok is False and found.engine_available:
        found = HostReport(False, runtime.message, runtime.fix, [])
    checks = [*found.checks, runtime, *damage(settings)]
    shown = msgspec.structs.replace(found, checks=checks)
    sys.stdout.write(msgspec.json.encode(shown).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
