"""Checks of a launch before it begins: an error of the system in the middle of it would say less."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigurationError
from ..model import LaunchSpec
from .records import check_kernel_id

_MOST_PORT, _MOST_UMASK = 65535, 0o777
#: MAX_ARG_STRLEN of Linux (include/uapi/linux/binfmts.h), its end included.
_MOST_WORD_BYTES = 128 << 10
#: A pointer to each word, and room for what init is given besides.
_POINTER_BYTES, _ROOM_BYTES = 8, 64 << 10


def check(spec: LaunchSpec) -> None:
    """Raise ConfigurationError for a launch that cannot work; look at the file system for it."""
    check_kernel_id(spec.kernel_id)
    check_ports(spec.own_ports)
    if problem := next(_problems(spec), ""):
        raise ConfigurationError(
            f"The kernel cannot be started: {problem}.", hint="Look at its kernelspec."
        )


def check_ports(ports: list[int]) -> None:
    """Raise ConfigurationError for numbers that are no ports."""
    if any(not 0 < port <= _MOST_PORT for port in ports):
        raise ConfigurationError(
            "A port of the kernel's own is no port.", hint=f"Ports are numbers up to {_MOST_PORT}."
        )


def _problems(spec: LaunchSpec) -> Iterator[str]:
    """Yield what is wrong with a launch, without values of the environment, which are secret."""
    if not spec.argv or not spec.argv[0]:
        yield "it has no program"
    settings = [f"{name}={value}" for name, value in spec.env.items()]
    words = [os.fsencode(word) for word in (*spec.argv, *settings)]
    if any(b"\0" in word for word in words) or "\0" in spec.cwd + spec.log_path:
        yield "there is a zero byte in it"
    if any(not name or "=" in name for name in spec.env):
        yield "a variable of its environment has no name, or one with an equals sign"
    length = sum(len(word) + 1 + _POINTER_BYTES for word in words) + _ROOM_BYTES
    if length > os.sysconf("SC_ARG_MAX") or max(map(len, words)) >= _MOST_WORD_BYTES:
        yield "its command and environment are longer than the system allows"
    if not 0 <= spec.umask <= _MOST_UMASK:
        yield "its umask is none"
    if not Path(spec.cwd).is_dir():
        yield f"there is no folder {spec.cwd}"
    if not Path(spec.log_path).parent.is_dir() or Path(spec.log_path).is_dir():
        yield f"nothing can be written to {spec.log_path}"
