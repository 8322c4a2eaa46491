"""The records of templates: what a recipe is, what was made of it, and what that depends on.

A template is a recipe; the snapshot of a kernel that has run it is a cache. Times are seconds since the epoch.
"""

from __future__ import annotations

import re

import msgspec

from ..errors import ConfigurationError, ErrorRecord
from .manifest_records import Sizes

#: The version of a template's file. A reader refuses a higher one.
TEMPLATE_VERSION = 1
#: The names that Jupyter allows for kernelspecs, without upper-case letters, which some file systems do not tell apart.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


class Sources(msgspec.Struct, frozen=True):
    """The files on which a kernel depends that has run a recipe, as it reports them itself. Times are in nanoseconds.

    `folders`: where packages are installed, with the times of their last changes. `packages`: the metadata folder of each package
    there, likewise. `files`: other modules and libraries, with length and time of change.
    """

    folders: dict[str, int] = {}
    packages: dict[str, int] = {}
    files: dict[str, tuple[int, int]] = {}


class Cache(msgspec.Struct, frozen=True):
    """A snapshot of a kernel that has run a recipe. `recipe`, `agent`: digests of what it was made with.

    `seconds`: how long the recipe ran.
    """

    snapshot_id: str
    kernel_id: str
    created: float
    seconds: float
    recipe: str
    agent: str
    host_name: str
    sources: Sources
    sizes: Sizes = Sizes()


class Template(msgspec.Struct, frozen=True, omit_defaults=True):
    """A template. `kernel`: the kernelspec in which its recipe runs; `source`: the file of the recipe, empty if it has no other.

    `variables`: names of variables of the environment that the recipe gets besides the usual ones.
    """

    version: int
    name: str
    display_name: str
    kernel: str
    source: str = ""
    variables: list[str] = []
    cache: Cache | None = None
    #: Why the last attempt to make the cache failed, and when.
    error: ErrorRecord | None = None
    failed_at: float = 0.0


class Building(msgspec.Struct, frozen=True):
    """A build that runs, or was interrupted: the kernel whose snapshots belong to no template yet."""

    kernel_id: str


def require_name(name: str) -> None:
    """Raise ConfigurationError if this cannot be the name of a template."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"Not a name for a template: {name!r}",
            hint="Use small letters, digits, '-', '_' and '.'; it is the name of a kernel for programs.",
        )
