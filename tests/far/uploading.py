"""A process that uploads a snapshot and says so whenever it is about to write: it is there to be killed.

python -m tests.far.uploading FOLDER REMOTE(as JSON) SNAPSHOT
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from jupyter_gpuckpt.remote_records import Remote
from jupyter_gpuckpt.store.far.buckets import Bucket, open_bucket
from tests.far.stores import Machine


def main() -> None:
    folder, remote, snapshot_id = sys.argv[1:]
    machine = Machine(open_bucket(msgspec.json.decode(remote, type=Remote)), Path(folder))
    put = Bucket._put

    def told(bucket, name, data, mode):
        print("begins", name, flush=True)
        done = put(bucket, name, data, mode)
        print("done", name, flush=True)
        return done

    Bucket._put = told
    machine.upload(snapshot_id, pack_bytes=200_000)


if __name__ == "__main__":
    main()
