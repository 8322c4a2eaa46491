"""New secrets in a resumed kernel, which may be one of several copies: those that Python itself keeps in the process.

OpenSSL in libraries seeds itself anew (`engine/tree/fresh_randomness.c`). Generators for statistics (random, NumPy, torch) go on as
they were, also those of a branch.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import Any


def renew_secrets() -> None:
    """Renew the names of temporary files, the key of multiprocessing, the numbers of uuid_utils, and an OpenSSL within Python."""
    # User code may have replaced what is used here; a kernel that cannot be given new names goes on all the same.
    with suppress(Exception):
        _draw(sys.modules.get("ssl"))
    with suppress(Exception):
        tempfile: Any = sys.modules.get("tempfile")
        if tempfile is not None:
            tempfile._name_sequence = None
    with suppress(Exception):
        _renew_key(sys.modules.get("multiprocessing.process"))
    with suppress(Exception):
        # Its generator is Rust's, which asks the operating system once; it does this itself after a fork.
        uuids: Any = sys.modules.get("uuid_utils")
        if uuids is not None:
            uuids.reseed_rng()


def _draw(ssl: Any) -> None:
    """Draw from Python's OpenSSL while this thread has another pid for it, so that it seeds itself anew."""
    if ssl is None:
        return
    draw = ctypes.CDLL(None).gpuckpt_draw
    draw(1)
    try:
        ssl.RAND_bytes(1)
    finally:
        draw(0)


def _renew_key(process: Any) -> None:
    """Replace the key by which processes know each other, unless others have it already."""
    if process is None:
        return
    own = process.current_process()
    if process.parent_process() is None and not process.active_children():
        own.authkey = os.urandom(len(own.authkey))
