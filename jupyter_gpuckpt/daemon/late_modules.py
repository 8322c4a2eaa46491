"""The modules that a daemon needs only for work with a kernel or a snapshot; they are imported together, inside functions.

They and NumPy take nearly half of a daemon's start. Three rules follow from importing them late:

- No kernel runs without them: a daemon that finds kernels imports them at its start, any other before its first launch
  (`late_imports.py`). So a suspend never fails because of an import, and nothing is imported while a kernel stands still.
- A daemon that a server connects to imports them soon (`service.py`), because the package may be upgraded while the daemon runs.
- After an upgrade they are not imported: modules of two versions do not fit together.
"""

from ..errors import DaemonUnavailable
from ..wire.protocol import installed_version, package_version

if installed_version() != package_version():
    raise DaemonUnavailable(
        f"jupyter_gpuckpt was upgraded from {package_version()} to {installed_version()} while this gpuckptd ran without kernels.",
        hint="Nothing is lost. Restart the Jupyter server, or the program that starts the kernel.",
    )

from ..engine import park, recovery
from ..engine.memory import tracked_kernels
from ..remote import check_client, fetch, upload
from ..snapshots import (
    arrivals,
    changes,
    export,
    imports,
    notebooks,
    resume,
    save,
    trial,
    unpacked_snapshots,
    verify,
)
from ..snapshots.working_folder import (
    folder_changes,
    folder_copies,
    folder_restores,
    folder_returns,
    folder_saves,
    stored_folders,
)
from ..store import local, read_only

__all__ = [
    "arrivals",
    "changes",
    "check_client",
    "export",
    "fetch",
    "folder_changes",
    "folder_copies",
    "folder_restores",
    "folder_returns",
    "folder_saves",
    "imports",
    "local",
    "notebooks",
    "park",
    "read_only",
    "recovery",
    "resume",
    "save",
    "stored_folders",
    "tracked_kernels",
    "trial",
    "unpacked_snapshots",
    "upload",
    "verify",
]
