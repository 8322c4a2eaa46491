"""The worker's side of checking: it decrypts, unpacks and compares spans that a fetch has read.

See also: `check_client.py`, the caller's side, which defines the messages.
"""

from __future__ import annotations

import mmap
import socket
from contextlib import suppress

import numpy as np

from ..errors import record_of
from ..images.worker_messages import receive, receive_descriptors, send
from ..store.codecs import DIGEST_BYTES
from .check_client import HALF_BYTES, Checked, CheckSpan, CheckTask
from .checking import OpenPack, Span, check
from .pack_refs import PackRef
from .remote_packs import ROW
from .sealing import KEY_BYTES, cipher

#: The first message to a fork that is to check.
TASK = CheckTask


def prepare() -> None:
    """Import the cipher, once for all forks. Without it nothing is ever fetched, and the fork server has other tasks, too."""
    with suppress(BaseException):  # a broken installation raises what is no Exception
        cipher(bytes(KEY_BYTES))


def serve(connection: socket.socket) -> None:
    """Check the spans that the caller sends, until EOF."""
    (descriptor,) = receive_descriptors(connection, 1)
    memory = memoryview(mmap.mmap(descriptor, 0))
    try:
        send(connection, Checked())
        while (wanted := receive(connection, CheckSpan)) is not None:
            send(connection, _answer(wanted, memory))
    except ConnectionError:
        return  # the caller has exited


def _answer(wanted: CheckSpan, memory: memoryview) -> Checked:
    rows = np.frombuffer(wanted.rows, ROW)
    starts = range(0, len(wanted.digests), DIGEST_BYTES)
    digests = [wanted.digests[start : start + DIGEST_BYTES] for start in starts]
    pack = OpenPack(PackRef(wanted.name, 0, 0), wanted.secret, rows)
    end = wanted.start + wanted.length
    try:
        check(
            Span(pack, rows, digests, wanted.start, end),
            memory[: wanted.length],
            memory[HALF_BYTES:],
        )
    except BaseException as error:
        return Checked(record_of(error))
    return Checked()
