"""A process that fetches a snapshot and says so when a part of it is stored: it is there to be killed.

python -m tests.remote.fetching DATA_DIR REMOTE SNAPSHOT
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.remote.fetch import fetch
from jupyter_gpuckpt.remote.remote_list import Remotes
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.store.local import LocalStore


def main() -> None:
    data_dir, name, snapshot_id = Path(sys.argv[1]), *sys.argv[2:]
    opened = remote_keys.opened(data_dir, Remotes(data_dir).get(name))
    sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
    listed = [one for each in sessions.ids() for one in sessions.get(each).listed]
    [snapshot] = [one for one in listed if one.snapshot_id == snapshot_id]

    def stop(done: int, _: int) -> None:
        if done:
            print("stored", flush=True)
            time.sleep(10_000)

    with LocalStore(data_dir / "store") as store:
        fetch(opened.bucket, opened.key.seal, snapshot, store, stop)


if __name__ == "__main__":
    main()
