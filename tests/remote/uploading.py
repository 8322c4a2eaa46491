"""A process that uploads a snapshot and prints a line before and after each write, so that a test can kill or stop it in between.

python -m tests.remote.uploading FOLDER REMOTE(as JSON) SNAPSHOT [NUMBER]      before write NUMBER it stops itself (SIGSTOP)
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
from pathlib import Path

import msgspec

from jupyter_gpuckpt.remote.buckets import Bucket
from jupyter_gpuckpt.wire.remote_records import Remote
from tests.remote.conftest import opened
from tests.remote.stores import Machine


def main() -> None:
    folder, remote, snapshot_id = sys.argv[1:4]
    stop_at = int(sys.argv[4]) if len(sys.argv) > 4 else None
    bucket = opened(msgspec.json.decode(remote, type=Remote), Path(folder).parent)
    machine = Machine(bucket, Path(folder))
    numbers = itertools.count()

    def reported(write):
        @functools.wraps(write)
        def wrapper(bucket, name, *arguments):
            # By one system call: of two threads that print, one may write between the other's text and the end of its line.
            os.write(1, f"begins {name}\n".encode())
            if next(numbers) == stop_at:
                os.kill(os.getpid(), signal.SIGSTOP)
            done = write(bucket, name, *arguments)
            os.write(1, f"done {name}\n".encode())
            return done

        return wrapper

    Bucket.create, Bucket.swap = reported(Bucket.create), reported(Bucket.swap)
    machine.upload(snapshot_id, pack_bytes=200_000)


if __name__ == "__main__":
    main()
