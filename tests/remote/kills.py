"""Kills -9 at random moments while snapshots are uploaded: of the daemon, the process that uploads, the object store, or all at once.

python -m tests.remote.kills N [SEED]      afterwards everything that is listed is fetched into an empty store, and every byte compared
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.remote import remote_manifests
from jupyter_gpuckpt.snapshots.export import export
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire import calls, daemon_settings
from jupyter_gpuckpt.wire.snapshot_records import UploadState
from tests.conftest import environment, folder_of_a_daemon, processes_naming, wait_for
from tests.live_files import stats_below
from tests.remote import servers
from tests.remote.installations import Reader, add_remote, save, some_chunks

WHOM = ("daemon", "daemon", "worker", "store", "daemon and store")
#: A snapshot has so many chunks at most; its packs have 32.
MAX_CHUNKS = 100
RATE = 25_000_000
STUCK_SECONDS = 900.0
MAX_WAIT_SECONDS = 60.0


class World:
    """A daemon, an object store, and the snapshots that both should have in the end."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.kills: Counter[str] = Counter()
        #: Of each snapshot the seeds of its chunks.
        self.snapshots: dict[str, list[int]] = {}
        self._stack, self._running = ExitStack(), ExitStack()
        (folder / "weed").mkdir()
        self._server = servers.SeaweedFS(folder / "weed")
        self.settings = daemon_settings.from_environment()

    def __enter__(self) -> Self:
        url = self._running.enter_context(self._server.running())
        there = servers.s3_remote(url, "kills")
        fields = {"settings": there.settings, "upload_rate": RATE}
        add_remote(self.settings.data, "offsite", there.url, **fields)
        self.client = self._stack.enter_context(Client.connect(self.settings))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
        self._stack.close()

    def save(self) -> None:
        """Bring another snapshot in, which shares some chunks with an earlier one."""
        number = len(self.snapshots)
        before = self.chance.choice([[], *self.snapshots.values()])
        count = self.chance.randint(1, MAX_CHUNKS)
        seeds = before[: count // 3] + [number * 1000 + one for one in range(count)]
        snapshot_id = f"s{number}"
        chunks = [one for seed in seeds for one in some_chunks(seed, 1)]
        with LocalStore(self.folder / f"made-{number}") as store:
            save(store, snapshot_id, *chunks, created=1.0 + number)
            with export(store, snapshot_id) as archive:
                self.client.send(calls.import_archive(archive.pieces()))
        self.snapshots[snapshot_id] = seeds

    def states(self) -> list[UploadState]:
        """Return how far every snapshot is; nothing while the daemon is not there."""
        found = self.client.send(calls.snapshots())
        return [one.state for info in found for one in info.uploads]

    def until_some_moment(self) -> None:
        """Wait for a random time, or until an upload has come some way and a little longer."""
        before, deadline = self._progress(), time.monotonic() + MAX_WAIT_SECONDS
        if self.chance.random() < 0.3:
            time.sleep(self.chance.uniform(0, 3))
            return
        while self._progress() == before and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(self.chance.choice([0.0, self.chance.uniform(0, 0.5)]))

    def _progress(self) -> list[tuple[str, int]]:
        """Return what changes with every pack that is confirmed, and at an upload's end."""
        return sorted(
            (path.name, status.st_size)
            for path, status in stats_below(self.settings.data / "remotes/offsite")
            if ".json" in path.name
        )

    def kill(self) -> None:
        """Kill somebody, and start again what was killed."""
        whom = self.chance.choice(WHOM)
        if whom == "worker":
            for pid in processes_naming(self.folder):
                with suppress(OSError):
                    if b"upload_worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)
        if "store" in whom:
            self._running.close()
        if "daemon" in whom:
            os.kill(self.client.send(calls.handshake()).pid, signal.SIGKILL)
        self.kills[whom] += 1
        if "store" in whom:
            self._running.enter_context(self._server.running())

    def until_uploaded(self) -> None:
        """Wait until the remote has everything; what waits for the next attempt need not."""
        wait_for(lambda: all(one is UploadState.UPLOADED for one in self.states()), STUCK_SECONDS)

    def compare(self) -> tuple[int, int, int]:
        """Fetch and compare everything; the bytes that were compared, the remote's packs, and those that are needed."""
        reader = Reader(self.settings.data, "offsite")
        listed = reader.listed()
        assert set(listed) == set(self.snapshots), "not everything is listed"
        needed = set()
        for snapshot_id, session in listed.items():
            [one] = [one for one in session.listed if one.snapshot_id == snapshot_id]
            manifest = remote_manifests.read(reader.bucket, reader.seal, one.manifest, one.digest)
            needed |= {ref.name for ref in manifest.packs}
        compared = 0
        for snapshot_id, content in reader.fetch_each():
            seeds = self.snapshots[snapshot_id]
            assert len(content) == len(seeds), f"{snapshot_id} has another length"
            for seed, chunk in zip(seeds, content, strict=True):
                assert [chunk] == some_chunks(seed, 1), f"{snapshot_id} differs"
                compared += len(chunk)
        return compared, len(reader.bucket.list("packs")), len(needed)


def main() -> None:
    """Kill as often as is asked, and report."""
    most = int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(10**6)
    # Printed first: a run that hangs can be repeated.
    print(f"seed {seed}", file=sys.stderr, flush=True)
    began = time.monotonic()
    # Ctrl-C ends the kills; what is there by then is compared.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with folder_of_a_daemon() as folder:
        criu = Path(os.environ.get("JUPYTER_GPUCKPT_CRIU", "criu"))
        os.environ |= environment(criu, folder) | servers.s3_variables()
        with World(folder, random.Random(seed)) as world:
            with suppress(KeyboardInterrupt):
                while sum(world.kills.values()) < most:
                    if all(one is UploadState.UPLOADED for one in world.states()):
                        world.save()
                    world.until_some_moment()
                    world.kill()
            world.until_uploaded()
            compared, packs, needed = world.compare()
    print(f"{sum(world.kills.values())} kills, seed {seed}: {dict(world.kills)}")
    print(f"{len(world.snapshots)} snapshots listed and fetched, {compared / 1e6:.0f} MB equal")
    print(f"{packs} packs in the remote, {needed} of them needed")
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
