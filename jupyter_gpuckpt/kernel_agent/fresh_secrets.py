"""New secrets in a resumed kernel, which may be one of several copies: those that Python itself keeps in the process.

OpenSSL in libraries seeds itself anew (`engine/tree/fresh_randomness.c`). Generators for statistics (random, NumPy, torch) go on as
they were, also those of a branch; `global_generators.py` is for kernels that begin with another one's variables.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

#: `INSIDE` of `engine/tree/fresh_randomness.py`: a number that is new after every resume, then a mark that is new in every copy.
_COPY = "/dev/shm/.gpuckpt/copy"  # noqa: S108 - the kernel's own, private one
_MARK = slice(4, 8)
#: Arguments of `gpuckpt_draw` (`engine/tree/fresh_randomness.c`).
_ELSE, _DRAWS, _ASKS_PYTHON = 0, 1, 2
#: The length of multiprocessing's key, unless a user has chosen another one.
_KEY_BYTES = 32


class FreshSecrets:
    """The secrets of this process that are renewed after a resume. No module is imported for that."""

    def __init__(self) -> None:
        self._mark = _mark()
        #: What could not be renewed after the last resume.
        self.not_renewed: list[str] = []
        # The library then knows OpenSSL's calls before the first copy is made.
        self._attempt("ssl", _draw)

    def renew(self) -> None:
        """Renew OpenSSL within Python, the names of temporary files, the numbers of uuid_utils and, in a copy, multiprocessing's key.

        A plain suspend and resume makes no copy: the key stays, which other programs may know.
        """
        self.not_renewed = []
        self._attempt("ssl", _draw)
        self._attempt("tempfile", _forget_names)
        # Its generator is Rust's, which asks the operating system once; it does this itself after a fork.
        self._attempt("uuid_utils", lambda module: module.reseed_rng())
        if (mark := _mark()) != self._mark:
            self._mark = mark
            self._attempt("multiprocessing.process", _renew_key)

    def _attempt(self, name: str, renew: Callable[[Any], None]) -> None:
        """Call `renew` with a module that is loaded; note its name if that fails. User code may have replaced what the function uses."""
        module = sys.modules.get(name)
        if module is None:
            return
        try:
            renew(module)
        except Exception:
            self.not_renewed.append(name)


def _mark() -> bytes:
    """Return the mark of this copy; empty if there is none."""
    try:
        descriptor = os.open(_COPY, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _MARK.stop)[_MARK]
    finally:
        os.close(descriptor)


def _draw(ssl: Any) -> None:
    """Draw from Python's OpenSSL while this thread has another pid for it, so that it seeds itself anew."""
    draw = getattr(ctypes.CDLL(None), "gpuckpt_draw", None)
    if draw is None:
        return  # a kernel without the engine is never copied
    draw(_ASKS_PYTHON)
    try:
        os.getpid()
        draw(_DRAWS)
        ssl.RAND_bytes(1)
    finally:
        draw(_ELSE)


def _forget_names(tempfile: Any) -> None:
    tempfile._name_sequence = None


def _renew_key(process: Any) -> None:
    """Replace the key by which processes know each other, unless others may have it: child processes, or whoever told it to a user."""
    own = process.current_process()
    if process.parent_process() is not None or process.active_children():
        return
    if len(own.authkey) != _KEY_BYTES or own.authkey.isascii():
        return  # a user has chosen it
    own.authkey = os.urandom(_KEY_BYTES)
    # The thread that passes files to other processes listens with the key that it began with.
    sharer: Any = getattr(
        sys.modules.get("multiprocessing.resource_sharer"), "_resource_sharer", None
    )
    if getattr(sharer, "_listener", None) is not None:
        sharer._listener._authkey = own.authkey
