"""What a recipe has left in a kernel: what copies of the kernel could not share, and the files on which they depend."""

from __future__ import annotations

import os
import socket
import stat
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
#: File systems whose files are in the snapshot, so that each copy has its own.
_OWN_FILES = ("/dev/", "/proc/", "/memfd:")
_DELETED = " (deleted)"
_PACKAGES = (".dist-info", ".egg-info")


def left_in(kernel: Any, log: str) -> list[str]:
    """Return what the end of one copy, or its work, would take from the others, a phrase each. `log`: the kernel's own."""
    found = [*_processes(), *_sockets(kernel), *_written_files(log), *_temporary_folders()]
    return sorted(set(found))


def sources() -> dict[str, Any]:
    """Return the files on which the kernel depends, as `wire.template_records.Sources` has them."""
    folders = {path for path in map(os.path.realpath, sys.path) if _has_packages(path)}
    files = {}
    for path in _loaded_files():
        # What is in a folder of packages changes with its package.
        if not any(path.startswith(f"{folder}/") for folder in folders):
            with suppress(OSError):
                status = os.stat(path)  # noqa: PTH116 - hundreds of files
                files[path] = (status.st_size, status.st_mtime_ns)
    packages = [
        f"{folder}/{name}" for folder in folders for name in _names(folder) if _is_package(name)
    ]
    return {"folders": _times(folders), "packages": _times(packages), "files": files}


def _processes() -> Iterator[str]:
    """Yield the processes besides this one and those that keep it."""
    ours, pid = {1}, os.getpid()
    while pid > 1:
        ours.add(pid)
        pid = _parent(pid)
    for name in _names("/proc"):
        if name.isdigit() and int(name) not in ours:
            with suppress(OSError), open(f"/proc/{name}/comm") as file:  # noqa: PTH123 - Python 3.8
                yield f"the process {file.read().strip()}"


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - Python 3.8
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _sockets(kernel: Any) -> Iterator[str]:
    """Yield the sockets that are known outside: servers, and connections to other programs."""
    own = {getattr(kernel.parent, name) for name in _PORTS}
    own.add(getattr(kernel.iopub_thread, "_pipe_port", None))
    for descriptor in _descriptors():
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as one:
                here, there = one.getsockname(), _peer(one)
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    if {here[1], there[1] if there else 0} & own:
                        continue
                    if there:
                        yield f"a connection to {there[0]}:{there[1]}"
                    elif here[1]:
                        yield f"a socket at port {here[1]}"
                elif one.family == socket.AF_UNIX and (here or there):
                    name = here or there
                    text = name.decode(errors="replace") if isinstance(name, bytes) else name
                    yield f"the socket {text.strip(chr(0))}"


def _peer(one: socket.socket) -> Any:
    try:
        return one.getpeername()
    except OSError:
        return None


def _written_files(log: str) -> Iterator[str]:
    for descriptor in _descriptors():
        with suppress(OSError):
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not _is_written(descriptor):
                continue
            path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - as it is
            if path != log and _is_shared(path):
                yield f"the file {path}, which is open for writing"


def _is_written(descriptor: int) -> bool:
    with open(f"/proc/self/fdinfo/{descriptor}") as file:  # noqa: PTH123 - Python 3.8
        flags = next(line for line in file if line.startswith("flags:"))
    return bool(int(flags.split()[1], 8) & os.O_ACCMODE)


def _temporary_folders() -> Iterator[str]:
    """Yield the folders that Python removes at its end."""
    for one in list(getattr(weakref.finalize, "_registry", {}).values()):
        name = getattr(one.func, "__qualname__", "")
        if name == "TemporaryDirectory._cleanup" and one.args:
            yield f"the temporary directory {one.args[0]}"
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        folder = process.current_process()._config.get("tempdir")
        if folder:
            yield f"the temporary directory {folder}"


def _loaded_files() -> set[str]:
    found = set()
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.startswith("/"):
            found.add(path)
    with suppress(OSError), open("/proc/self/maps") as maps:  # noqa: PTH123 - Python 3.8
        for line in maps:
            name = line.rstrip("\n")[73:]
            if _is_shared(name):
                found.add(name)
    return found


def _is_shared(path: str) -> bool:
    """Return whether a file is not in the snapshot, so that all copies have the same."""
    return path[:1] == "/" and not path.startswith(_OWN_FILES) and not path.endswith(_DELETED)


def _has_packages(path: str) -> bool:
    return any(_is_package(name) for name in _names(path))


def _is_package(name: str) -> bool:
    return name.endswith(_PACKAGES)


def _times(paths: Any) -> dict[str, int]:
    found = {}
    for path in paths:
        with suppress(OSError):
            found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116 - hundreds of files
    return found


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - objects for paths take ten times as long
    except OSError:
        return []


def _descriptors() -> list[int]:
    return [int(name) for name in _names("/proc/self/fd")]
