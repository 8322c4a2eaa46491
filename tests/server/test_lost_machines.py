"""Machines that vanish with their disks, without notice: what is lost is never older than what the page said before.

GPUCKPT_LOST_MACHINES says how many are lost, one after the other.
"""

import os
import random
import secrets
import shutil
import subprocess
import time

import msgspec
import pytest

from tests.conftest import wait_for
from tests.remote import servers, shared_servers
from tests.remote.joined import join
from tests.server.test_another_machine import BOOT, NAMESPACES

MACHINES = int(os.environ.get("GPUCKPT_LOST_MACHINES", "3"))
#: The interval of periodic saves, and the time for which a machine lives after the first upload, at most, in seconds.
INTERVAL, LIFE = 10.0, 30.0
#: Writes down when it ran, all the time.
BEATS = """
import time
beats = []
while True:
    beats.append(time.time())
    time.sleep(0.002)
"""
NOTEBOOK = "beats.ipynb"
KEPT = "print(max(one for one in beats if one < {killed_at}))"


class Machines:
    """Machines with a disk and a daemon each, which have a bucket and their notebooks in common."""

    def __init__(self, make_server, folder, url):
        self._make_server, self._folder = make_server, folder
        self._remote = msgspec.structs.replace(
            servers.s3_remote(url, f"p{secrets.token_hex(6)}"), name="share"
        )
        self._line = ""

    def boot(self, name):
        disk = self._folder / name
        (disk / "run").mkdir(parents=True)
        joined = join(disk / "data", self._remote, self._line)
        self._line = self._line or joined.line
        options = [f"--GpuCkptServer.lose_at_most={INTERVAL}", "--GpuCkptServer.autosave_cost=1000"]
        places = {
            "JUPYTER_GPUCKPT_DATA_DIR": str(disk / "data"),
            "JUPYTER_GPUCKPT_RUNTIME_DIR": str(disk / "run"),
        }
        server = self._make_server(*options, env=servers.s3_variables() | places)
        words = ["unshare", *NAMESPACES, "sh", "-c", BOOT, "sh", name, str(disk / "run"), "--"]
        server.prefix = words
        return server.start(), disk


def said_to_be_kept_until(server, kernel_id):
    """Return the time from which on the page says that work would be lost (at-risk.ts); None: all of it."""
    view = server.kernel(kernel_id)
    found = server.get("api/gpuckpt/snapshots")["snapshots"]
    mine = [one for one in found if one["kernel_id"] == kernel_id]
    there = [one for one in mine if any(up["state"] == "uploaded" for up in one["uploads"])]
    if not there:
        return None
    has_changed = view["changed_at"] is not None
    if there[0] == mine[0] and has_changed:
        return view["changed_at"]
    return there[0]["created"] if has_changed else mine[0]["created"]


def resumed(server):
    """Fetch the newest snapshot of the only session in the remote and resume it; return its kernel's id."""
    [session] = server.get("api/gpuckpt/remotes/share/sessions")["sessions"]
    snapshot_id = session["snapshots"][0]["snapshot_id"]
    for verb, body in (
        (f"remotes/share/snapshots/{snapshot_id}/fetch", {"take_over": True}),
        (f"snapshots/{snapshot_id}/resume", {"path": NOTEBOOK, "take_over": True}),
    ):
        done = server.finish(server.request("POST", f"api/gpuckpt/{verb}", json=body).json())
        assert done["state"] == "succeeded", done
    return done["kernel_id"]


class Work:
    """A cell that runs on one machine after the other. `kernel_id`: on the present one."""

    def __init__(self):
        self.kernel_id, self.said, self.killed_at, self.worst = "", 0.0, 0.0, 0.0

    def begin(self, server):
        page = server.open(NOTEBOOK)
        self.kernel_id = page.kernel_id
        page.execute(BEATS)

    def go_on(self, server):
        """Go on with what the remote has, which is at least what the page has said."""
        self.kernel_id = resumed(server)
        page = server.page(self.kernel_id)
        server.request("POST", f"api/kernels/{self.kernel_id}/interrupt")
        kept = float(page.run(KEPT.format(killed_at=self.killed_at)))
        lost, said = self.killed_at - kept, self.killed_at - self.said
        assert lost <= said + 0.01, (lost, said)
        self.worst = max(self.worst, lost)
        page.execute(BEATS)

    def lose(self, server, after_seconds):
        """Lose the machine some time after the remote has the work's first snapshot of it."""
        wait_for(lambda: said_to_be_kept_until(server, self.kernel_id), 120, server.log)
        time.sleep(after_seconds)
        self.said = said_to_be_kept_until(server, self.kernel_id)
        self.killed_at = time.time()
        server.kill()


@pytest.mark.slow
def test_what_is_lost_with_a_machine_is_what_the_page_said(
    make_server, short_dir, pytestconfig, monkeypatch
):
    if os.geteuid() or subprocess.run(["unshare", *NAMESPACES, "true"], check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    for name, value in servers.s3_variables().items():
        monkeypatch.setenv(name, value)
    machines = Machines(make_server, short_dir, shared_servers.seaweedfs(pytestconfig))
    chance, work = random.Random(os.environ.get("GPUCKPT_SEED")), Work()
    for number in range(MACHINES):
        server, disk = machines.boot(f"machine-{number}")
        if number:
            work.go_on(server)
        else:
            work.begin(server)
        work.lose(server, chance.uniform(0, LIFE))
        shutil.rmtree(disk)
    print(f"{MACHINES} machines were lost, and at most the last {work.worst:.1f} s of work")
