"""Checks of a launch before it begins: a system error in the middle of it would be less clear."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ...errors import ConfigurationError
from ...wire.ids import is_id
from ...wire.manifest_records import LaunchSpec

_MAX_PORT, _MAX_UMASK = 65535, 0o777
#: MAX_ARG_STRLEN of Linux (include/uapi/linux/binfmts.h), its end included.
_MAX_STRING_BYTES = 128 << 10
#: The bytes of the pointer to each string, and those reserved for init's own arguments.
_POINTER_BYTES, _ROOM_BYTES = 8, 64 << 10


def check(spec: LaunchSpec) -> None:
    """Raise ConfigurationError for a launch that cannot work. It reads the file system."""
    check_kernel_id(spec.kernel_id)
    check_ports(spec.own_ports)
    check_folder(spec.own_sockets.folder)
    if problem := next(_problems(spec), ""):
        raise ConfigurationError(
            f"The kernel cannot be started: {problem}.", hint="Look at its kernelspec."
        )


def check_ports(ports: list[int]) -> None:
    """Raise ConfigurationError for numbers that are not ports."""
    if any(not 0 < port <= _MAX_PORT for port in ports):
        raise ConfigurationError(
            "One of the kernel's ports is not a port number.",
            hint=f"Ports are numbers up to {_MAX_PORT}.",
        )


def check_folder(folder: str) -> None:
    """Raise ConfigurationError for a text that is not the path of a folder for sockets; an empty one means that there is none."""
    if folder and (not folder.startswith("/") or ".." in folder.split("/") or "\0" in folder):
        raise ConfigurationError(
            "The folder of the kernel's own sockets is no absolute path.",
            hint="It begins with / and has no `..`.",
        )


def _problems(spec: LaunchSpec) -> Iterator[str]:
    """Yield the problems of a launch as texts, without values of the environment, which are secret."""
    if not spec.argv or not spec.argv[0]:
        yield "it has no program"
    settings = [f"{name}={value}" for name, value in spec.env.items()]
    strings = [os.fsencode(string) for string in (*spec.argv, *settings)]
    if any(b"\0" in string for string in strings) or "\0" in spec.cwd + spec.log_path:
        yield "it contains a zero byte"
    if any(not name or "=" in name for name in spec.env):
        yield "a variable of its environment has no name, or one with an equals sign"
    length = sum(len(string) + 1 + _POINTER_BYTES for string in strings) + _ROOM_BYTES
    if length > os.sysconf("SC_ARG_MAX") or max(map(len, strings)) >= _MAX_STRING_BYTES:
        yield "its command and environment are longer than the system allows"
    if not 0 <= spec.umask <= _MAX_UMASK:
        yield "its umask is invalid"
    if not Path(spec.cwd).is_dir():
        yield f"there is no folder {spec.cwd}"
    if not Path(spec.log_path).parent.is_dir() or Path(spec.log_path).is_dir():
        yield f"nothing can be written to {spec.log_path}"


def check_kernel_id(kernel_id: str) -> None:
    """Raise ConfigurationError for an id that cannot be the name of a directory."""
    if not is_id(kernel_id):
        raise ConfigurationError(
            f"Not a usable kernel id: {kernel_id!r}",
            hint="Use at most 128 letters, digits, '_', '-' and '.'; a UUID is best.",
        )
