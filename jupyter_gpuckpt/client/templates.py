"""The templates of this user on disk.

templates/<name>/template.json   the record; without it there is no such template
templates/<name>/recipe.ipynb    the recipe
templates/<name>/start.py        what an ordinary kernel of the template's kernelspec executes at its start
templates/<name>/building.json   names the kernel of a build that runs, or was interrupted
templates/<name>.lock            held, shared, while a kernel is started from it, and alone while its record changes
templates/<name>.building        held by the builder
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import ConfigurationError, FormatTooNew, GpuCkptError, KernelBusy, record_of
from ..linux.disk_reserve import with_room, write_atomically
from ..linux.file_locks import alone_at_once
from ..wire import decoding
from ..wire.template_records import (
    TEMPLATE_VERSION,
    Building,
    Sources,
    Template,
    require_name,
)
from . import recipes
from .agent_code import installation

#: How long a change waits for kernels that are being started from a template.
_IN_USE_SECONDS, _PAUSE = 30.0, 0.05
#: How long after a failed build no other is begun by itself.
_RETRY_SECONDS = 3600.0

_Record = TypeVar("_Record")


class TemplateFolder:
    """The folder of a template, which may not exist. Raises ConfigurationError for a name that no template can have."""

    def __init__(self, data: Path, name: str) -> None:
        require_name(name)
        self.name = name
        self.path = data / "templates" / name
        self.recipe = self.path / "recipe.ipynb"
        #: The store with its snapshot, if that is not the daemon's own.
        self.store = ""
        self.start = self.path / "start.py"
        self._record, self._building = self.path / "template.json", self.path / "building.json"
        self._lock = self.path.with_name(f"{name}.lock")
        self._builder = self.path.with_name(f"{name}.building")

    def find(self) -> Template | None:
        """Return the template; None if there is none. Raises ConfigurationError if its file cannot be read, FormatTooNew."""
        found = self._read(self._record, Template)
        if found is not None and found.version > TEMPLATE_VERSION:
            raise FormatTooNew(
                f"The template {self.name} was made by a newer version of jupyter-gpuckpt.",
                hint="Use that version, or make the template again.",
            )
        return found

    def get(self) -> Template:
        """Return the template. Raises ConfigurationError if there is none."""
        found = self.find()
        if found is None:
            raise ConfigurationError(
                f"There is no template {self.name}.",
                hint="`jupyter gpuckpt template list` lists them.",
            )
        return found

    def require_free(self) -> None:
        """Raise ConfigurationError if there is a template of this name."""
        if self.find() is not None:
            raise ConfigurationError(
                f"There is a template {self.name} already.",
                hint=f"Choose another name; `jupyter gpuckpt template rm {self.name}` removes that one.",
            )

    def cells(self, template: Template) -> list[str]:
        """Return the cells of the recipe: those of the file that it was made from, if that can be read."""
        if template.source:
            try:
                return recipes.read(Path(template.source))
            except ConfigurationError:
                pass
        return recipes.read(self.recipe)

    def write(self, template: Template, files: dict[Path, bytes]) -> None:
        """Write files of the template, then its record. Raises OSError, KernelBusy while kernels are being started from it."""
        with self._alone():
            self._make()
            for path, content in files.items():
                write_atomically(path, content)
            write_atomically(self._record, msgspec.json.encode(template))

    def remove(self, first: Callable[[], object]) -> None:
        """Call `first`, then remove everything, the record first. Raises OSError, KernelBusy while kernels are being started from it."""
        with self._alone():
            first()
            self._record.unlink(missing_ok=True)
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.unlink(missing_ok=True)

    def remove_record(self) -> None:
        """Remove the record of a template that was never complete. Raises OSError, KernelBusy."""
        with self._alone():
            self._record.unlink(missing_ok=True)

    def begin_build(self, kernel_id: str) -> None:
        """Write down which kernel a build starts."""
        self._make()
        write_atomically(self._building, msgspec.json.encode(Building(kernel_id)))

    def interrupted_build(self) -> Building | None:
        """Return the build that was interrupted, or runs; None if there is none."""
        return self._read(self._building, Building)

    def end_build(self) -> None:
        """Note that the last build has left nothing that belongs to no template; remove a folder without a template."""
        self._building.unlink(missing_ok=True)
        if not self._record.exists():
            shutil.rmtree(self.path, ignore_errors=True)

    @contextmanager
    def built_by_us(self) -> Iterator[None]:
        """Let no other process build the template during the block. Raises KernelBusy if one does."""
        with alone_at_once(self._builder) as is_held:
            if not is_held:
                raise KernelBusy(
                    f"The template {self.name} is being built.",
                    hint="Wait for the end of that; `jupyter gpuckpt template list` shows it.",
                )
            yield

    @property
    def is_being_built(self) -> bool:
        """Return whether a process builds the template now."""
        if not self._builder.exists():
            return False
        with alone_at_once(self._builder) as is_held:
            return not is_held

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let nobody change or remove the template during the block, in which a kernel is started from it. Raises OSError."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        deadline = time.monotonic() + _IN_USE_SECONDS
        while True:
            with alone_at_once(self._lock) as is_held:
                if is_held:
                    yield
                    return
            if time.monotonic() > deadline:
                raise KernelBusy(
                    f"Kernels are being started from the template {self.name}.",
                    hint="Try again when they run.",
                )
            time.sleep(_PAUSE)

    def _make(self) -> None:
        with_room(self.path, lambda: self.path.mkdir(mode=0o700, parents=True, exist_ok=True))

    def _read(self, path: Path, kind: type[_Record]) -> _Record | None:
        try:
            return decoding.from_json(path.read_bytes(), kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigurationError(
                f"The file {path} of the template {self.name} cannot be read: {error}",
                hint=f"`jupyter gpuckpt template rm {self.name}` removes the template.",
            ) from error


class SharedTemplateFolder(TemplateFolder):
    """The folder of an administrator's template, which is only read. Its recipe is the one in it, whatever that was made from.

    `data`: the administrator's data directory. Whoever may write to it can run code as everybody who starts a kernel from it.
    """

    def __init__(self, data: Path, name: str) -> None:
        super().__init__(data, name)
        store = data / "store"
        self.store = str(store)
        self._folders = (data, data / "templates", self.path, store, store / "manifests")

    def get(self) -> Template:
        """Return the template. Raises ConfigurationError if there is none, or if every user may change it."""
        for path in self._folders:
            with suppress(OSError):
                if path.stat().st_mode & stat.S_IWOTH:
                    raise ConfigurationError(f"Every user may write to {path}")
        return super().get()

    def cells(self, template: Template) -> list[str]:
        """Return the cells of the recipe."""
        return recipes.read(self.recipe)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Do nothing: a change meanwhile is noticed by what is missing then."""
        yield


def found(data: Path, name: str, shared: str) -> TemplateFolder:
    """Return the folder of a user's own template, else of the administrator's. `shared`: that one's data directory; empty: there is none.

    Raises ConfigurationError.
    """
    own = TemplateFolder(data, name)
    return SharedTemplateFolder(Path(shared), name) if shared and own.find() is None else own


def folders(data: Path) -> list[TemplateFolder]:
    """Return the folders of all templates, by name."""
    records = sorted((data / "templates").glob("*/template.json"))
    found = []
    for record in records:
        try:
            found.append(TemplateFolder(data, record.parent.name))
        except ConfigurationError:  # not ours
            continue
    return found


def agent_digest() -> str:
    """Return a digest of the agent: a kernel whose agent is another cannot be told what a new one must know."""
    return hashlib.sha256(installation().encode()).hexdigest()


def staleness(template: Template, cells: list[str]) -> str:
    """Return why the cache of a template is not what its recipe would make now, as a part of a sentence; empty if it is."""
    cache = template.cache
    if cache is None:
        return "it was not built yet"
    if cache.agent != agent_digest():
        return "jupyter-gpuckpt was updated"
    if cache.recipe != recipes.digest_of(cells):
        return "its recipe was changed"
    return _changed(cache.sources)


def may_build(template: Template) -> bool:
    """Return whether to build a template whose cache is not what its recipe would make: not if that has just failed."""
    return template.error is None or not 0 <= time.time() - template.failed_at < _RETRY_SECONDS


def failed(template: Template, error: GpuCkptError) -> Template:
    """Return the record of a template that could not be built."""
    return msgspec.structs.replace(template, error=record_of(error), failed_at=time.time())


def _changed(sources: Sources) -> str:
    # A package that is installed, updated or removed changes the folder. Then it is looked which one it was.
    if any(_time(path) != time_ns for path, time_ns in sources.folders.items()):
        for path, time_ns in sources.packages.items():
            if _time(path) != time_ns:
                return f"the package {Path(path).name.partition('-')[0]} was changed"
    for path, expected in sources.files.items():
        try:
            status = os.stat(path)  # noqa: PTH116 - hundreds of files
        except OSError:
            return f"the file {path} is gone"
        if (status.st_size, status.st_mtime_ns) != expected:
            return f"the file {path} was changed"
    return ""


def _time(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - hundreds of files
    except OSError:
        return 0
