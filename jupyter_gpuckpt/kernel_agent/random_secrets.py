"""New random secrets after a resume: the same snapshot may be resumed twice, and two copies must not make the same keys.

Covers: every OpenSSL in the process (Python's own, and those that packages such as cryptography and psycopg2 bring along), the key of
multiprocessing, names of temporary files. Does not cover: generators of statistics (`random`, NumPy, torch), which go on as they were;
forked processes; libraries that read Linux's random numbers each time (`os.urandom`, `secrets`, `uuid.uuid4`), which need nothing.

OpenSSL takes new random numbers from Linux when getpid() is another than before (providers/implementations/rands/drbg.c, fork_id), first
in the generator from which those of all threads take theirs.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any


def renew() -> bool:
    """Make all generators of secrets in this process start anew; return False if the library that this needs is not loaded.

    Called in one thread at a time.
    """
    try:
        see_other_pid = ctypes.CDLL(None).gpuckpt_see_other_pid
    except (AttributeError, OSError):
        return False
    draws = list(_draws())
    see_other_pid(1)
    try:
        for draw in draws:
            with suppress(
                Exception
            ):  # a library that refuses one kind of key must not keep the others as they are
                draw()
    finally:
        see_other_pid(0)
    _renew_multiprocessing()
    return True


def _draws() -> Iterator[Callable[[], Any]]:
    """Yield functions that draw from the generators that compare pids. Nothing is imported that the user has not."""
    for path in _crypto_libraries():
        with suppress(AttributeError, OSError):
            draw = ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_NOLOAD).RAND_bytes
            yield partial(draw, ctypes.create_string_buffer(1), 1)
    ssl: Any = sys.modules.get("_ssl")
    if ssl is not None:  # in some builds of Python OpenSSL is a part of the program
        yield partial(ssl.RAND_bytes, 1)
    rust: Any = sys.modules.get("cryptography.hazmat.bindings._rust")
    if rust is not None:
        yield rust.openssl.x25519.generate_key
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None:
        yield tempfile._get_candidate_names().__next__


def _crypto_libraries() -> set[str]:
    """Return the paths of all shared libraries of OpenSSL in this process, also those under names of a package's own."""
    try:
        lines = Path("/proc/self/maps").read_bytes().decode(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    paths = {line.split(None, 5)[-1] for line in lines if "libcrypto" in line}
    return {path for path in paths if "libcrypto" in path.rpartition("/")[2]}


def _renew_multiprocessing() -> None:
    """Make a new key, unless processes of this one know the present key."""
    process: Any = sys.modules.get("multiprocessing.process")
    if (
        process is not None
        and not process._children
        and "multiprocessing.managers" not in sys.modules
    ):
        process.current_process().authkey = os.urandom(32)
