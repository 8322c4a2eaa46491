"""A user's server is stopped, by whomever, and started again: the user finds the variables and outputs left behind."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.conftest import wait_for
from tests.documented import block

#: The culler is the real one; it ends servers that have done nothing for so long.
IDLE_SECONDS = 3


class Two:
    """Two users, each with a session, a value and an output that only they may see."""

    def __init__(self, hub):
        self.hub = hub
        self.users = [hub.user("alice"), hub.user("bob")]
        self._start()
        self._pages = []
        for user in self.users:
            page = user.open(f"{user.name}.ipynb")
            assert page.run(f"mine, count = '{user.name}', 0; print(mine)") == f"{user.name}\n"
            self._pages.append(page)
        self._count = 0

    def _start(self):
        with ThreadPoolExecutor(len(self.users)) as pool:
            return list(pool.map(lambda user: user.start(), self.users))

    def close_pages(self):
        for user in self.users:
            user.close_pages()

    def find_again(self, *, is_announced=True):
        """Start both servers again: each lists its own session, and a cell goes on where it was.

        `is_announced`: the page of the start says so, because the hub stopped the server.
        """
        self._count += 1
        for user, page, shown in zip(self.users, self._pages, self._start(), strict=True):
            waiting = f"1 suspended session is waiting: {user.name}.ipynb"
            assert (waiting in shown) == is_announced, self.hub.log()
            (session,) = user.get("api/sessions")
            assert (session["id"], session["path"]) == (page.session_id, f"{user.name}.ipynb")
            assert session["kernel"]["id"] == page.kernel_id
            assert session["kernel"]["execution_state"] == "suspended"
            again = user.page(page.kernel_id)
            said = again.run("count += 1; print(mine, count)")
            assert said == f"{user.name} {self._count}\n"
            reply = next(m for m in again.received if m["msg_type"] == "execute_reply")
            assert reply["content"]["execution_count"] == self._count + 1
            snapshots = user.get("api/gpuckpt/snapshots")["snapshots"]
            assert {snapshot["kernel_id"] for snapshot in snapshots} == {page.kernel_id}


#: The service of the documentation that may run `hub-report`, beside those of the tests.
REPORTER = f"""
import types
own = types.SimpleNamespace(JupyterHub=types.SimpleNamespace())
exec({block("jupyterhub.md", "python", '"hub-report"')!r}, {{"c": own}})
own.JupyterHub.services[0]["api_token"] = given["secret"] + "-report"
c.JupyterHub.services += own.JupyterHub.services
c.JupyterHub.load_roles += own.JupyterHub.load_roles
"""


def test_two_users_find_what_they_left_however_their_servers_were_stopped(make_hub):
    hub = make_hub(REPORTER)
    two = Two(hub)
    alice, bob = two.users

    # By an administrator, and by the culler.
    two.close_pages()
    bob.begin_stop(hub.user("ada").token)
    with culling(hub):
        alice.wait_until_stopped()
        bob.wait_until_stopped()
    two.find_again()

    # With the hub.
    two.close_pages()
    hub.stop()
    hub.start()
    assert [user.model for user in two.users] == [None, None]
    two.find_again()

    # A hub that is killed leaves the servers alone, and does not know their tokens when it is back.
    two.close_pages()
    hub.stop(signal.SIGKILL)
    os.kill(int((hub.folder / "proxy.pid").read_text()), signal.SIGKILL)
    hub.start()
    for user in two.users:
        wait_for(lambda user=user: (user.model or {}).get("ready"), said=hub.log)
    # By themselves.
    bob.begin_stop()
    alice.stop()
    bob.wait_until_stopped()

    # Their administrator sees what they hold, although no server runs.
    held = {one["user"]: one for one in report_of(hub)}
    for user in two.users:
        one = held[user.name]
        assert (one["running"], one["sessions"], one["gpu_bytes"]) == (False, 1, 0)
        assert one["memory_bytes"] > one["disk_bytes"] > 1_000_000

    # Each time they were suspended before the spawner's own stop, not by a server that heard the signal.
    assert hub.log_path.read_text().count("1 of 1 kernel suspended") == 6


def report_of(hub):
    """Return what `jupyter gpuckpt hub-report` tells an administrator."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "jupyter_gpuckpt.cli", "hub-report", "--json"),
            f"--hub-url=http://127.0.0.1:{hub.direct_port}/hub/api",
        ],
        env={**os.environ, "JUPYTERHUB_API_TOKEN": f"{hub.secret}-report"},
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)["servers"]


@contextmanager
def culling(hub):
    """Run the real idle culler."""
    command = [
        *(sys.executable, "-m", "jupyterhub_idle_culler", "--cull-every=1"),
        *(f"--url=http://127.0.0.1:{hub.port}/hub/api", f"--timeout={IDLE_SECONDS}"),
    ]
    with hub.log_path.open("ab") as log:
        environment = {**os.environ, "JUPYTERHUB_API_TOKEN": hub.secret}
        culler = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        culler.terminate()
        culler.wait(180)
