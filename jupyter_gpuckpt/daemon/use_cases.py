"""The modules that a daemon needs only for work with a kernel or a snapshot; they are imported together, inside functions.

They and NumPy take nearly half of a daemon's start, for which a user's first kernel waits. Two rules follow from importing them late:

- Whatever stops a kernel imports this module first. Nothing is imported while the kernel stands still.
- A daemon with a kernel or a server imports it soon (`service.py`), because the package may be upgraded while the daemon runs: modules of
  two versions do not fit together.
"""

from ..engine import park, recovery
from ..snapshots import arrivals, changes, export, imports, notebooks, resume, save, trial, verify
from ..store import local
from ..store.far import fetch, upload

__all__ = [
    "arrivals",
    "changes",
    "export",
    "fetch",
    "imports",
    "local",
    "notebooks",
    "park",
    "recovery",
    "resume",
    "save",
    "trial",
    "upload",
    "verify",
]
