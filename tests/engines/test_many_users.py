"""Twenty ordinary users have a kernel with 500 MB each when their hub stops: each is suspended in time or named, and none is lost."""

import os
import re
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import psutil
import pytest

from jupyter_gpuckpt.wire.hub_records import STOP_MARGIN_SECONDS
from tests.conftest import end_everything_below, missing
from tests.engines.user_accounts import UserAccounts
from tests.hub.conftest import Hub

#: All together; the loaded machines of CI take several times as long as an idle one.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

USERS = 20
#: Servers, daemons and kernels of all users; their snapshots, two generations of them.
MEMORY_BYTES, DISK_BYTES = 17 << 30, 20 << 30
#: The default of `suspend_timeout`.
SECONDS = 60.0
#: What the end of a hub and of its servers may take beside suspends and the time of servers that are interrupted.
END_SECONDS = 120.0

CONFIG = """
c.JupyterHub.spawner_class = "gpuckpt-localprocess"
c.GpuCkptSpawnerMixin.suspend_timeout = {seconds}
c.Spawner.environment = {{
    name: text for name, text in given["environment"].items() if name != "JUPYTER_GPUCKPT_RUNTIME_DIR"
}}
"""

#: Half of the memory compresses well, half of it not at all.
FILL = """
import hashlib, numpy
def fill():
    global halves
    halves = None
    halves = [numpy.random.default_rng().random(31_250_000), numpy.arange(31_250_000)]
def digest():
    found = hashlib.blake2b()
    for half in halves:
        found.update(half)
    return found.hexdigest()
count = 0
fill()
print(digest())
"""
FILL_ANEW = "fill(); print(digest())"
LOOK = "count += 1; print(digest(), count)"


class Said(NamedTuple):
    """What the hub's log says of a user's kernel: when it was suspended, in seconds, or why it was not."""

    seconds: float | None
    why: str


class LocalHub(Hub):
    """A hub that sees the accounts of its users."""

    def __init__(self, folder, env, accounts):
        super().__init__(folder, env)
        self.prefix = accounts.prefix

    def configure(self, seconds):
        """Set the time of suspends before a start."""
        self.write_config(CONFIG.format(seconds=seconds))

    def end(self):
        if self.process is not None and self.process.poll() is None:
            self.stop(signal.SIGKILL)


class Everyone:
    """All users, each with a session and the digest of its data."""

    def __init__(self, hub, names):
        self.hub, self.users = hub, [hub.user(name) for name in names]
        self._all("start a server", lambda user: user.start())
        found = self._all("fill 500 MB", lambda user: user.open(f"{user.name}.ipynb").run(FILL))
        self.digests, self.count = found, 0

    def stop_hub(self, seconds):
        """Stop the hub; return what it said of each user."""
        for user in self.users:
            user.close_pages()
        before = self.hub.log_path.stat().st_size
        began = time.monotonic()
        self.hub.stop(seconds=2 * seconds + STOP_MARGIN_SECONDS + END_SECONDS)
        log = self.hub.log_path.read_bytes()[before:].decode(errors="replace")
        said = {user.name: said_of(user.name, log) for user in self.users}
        in_time = sorted(one.seconds for one in said.values() if one.seconds is not None)
        print(
            f"the hub stopped in {time.monotonic() - began:.1f} s: {len(in_time)} of {USERS} suspended"
            f" within {seconds:.1f} s, at {', '.join(f'{one:.1f}' for one in in_time)} s"
        )
        return said

    def find_again(self, said):
        """Start the hub and, at the same time, all servers; every user goes on with the session and its data."""
        self.count += 1
        self.hub.start()
        shown = self._all("start a server again", lambda user: user.start())
        found = self._all("run a cell", self._go_on)
        for name, (state, text) in found.items():
            assert text == f"{self.digests[name].strip()} {self.count}\n", name
            if said[name].seconds is not None:
                assert state == "suspended", name
                assert f"1 suspended session is waiting: {name}.ipynb" in shown[name]
        states = [state for state, _ in found.values()]
        print({state: states.count(state) for state in set(states)})

    def fill_anew(self):
        """Replace all data, so that suspends store as much as at first."""
        self.digests = self._all("fill anew", lambda user: user.pages[-1].run(FILL_ANEW))

    def _go_on(self, user):
        (session,) = user.get("api/sessions")
        page = user.page(session["kernel"]["id"])
        return session["kernel"]["execution_state"], page.run(LOOK)

    def _all(self, what, work):
        """Run a function for all users at the same time; return the results by name."""
        began = time.monotonic()
        with ThreadPoolExecutor(USERS) as pool:
            results = list(pool.map(work, self.users))
        print(f"{USERS} users {what}: {time.monotonic() - began:.1f} s")
        return {user.name: result for user, result in zip(self.users, results, strict=True)}


def said_of(name, log):
    """Find the report of a user's kernel in the hub's log. There must be exactly one."""
    saved = re.findall(rf"\] {name}: 1 of 1 kernel suspended, ([\d.]+) s", log)
    kernels = re.findall(rf"\] {name}: kernel \S+ was not suspended: (.+)", log)
    servers = re.findall(rf"\] {name}: not suspended: (.+)", log)
    assert len(saved) + len(kernels) + len(servers) == 1, f"{name}\n{log[-8000:]}"
    return Said(float(saved[0]), "") if saved else Said(None, (kernels + servers)[0])


@pytest.fixture
def hub_and_names(daemon_env, short_dir):
    """Return a hub that is not started yet, and the names of its users."""
    if os.geteuid():
        pytest.skip("being other users needs root")
    if psutil.virtual_memory().available < MEMORY_BYTES:
        missing("memory", f"twenty users need {MEMORY_BYTES >> 30} GB of free memory")
    if shutil.disk_usage(short_dir).free < DISK_BYTES:
        missing("disk", f"their snapshots need {DISK_BYTES >> 30} GB of free disk")
    with UserAccounts(short_dir, USERS) as accounts:
        hub = LocalHub(short_dir, daemon_env, accounts)
        try:
            yield hub, accounts.names
        finally:
            hub.end()
            end_everything_below(short_dir)  # before its users are no more


def test_no_kernel_of_twenty_users_is_lost_by_a_stop_of_the_hub(hub_and_names):
    hub, names = hub_and_names
    hub.configure(SECONDS)
    hub.start()
    everyone = Everyone(hub, names)

    said = everyone.stop_hub(SECONDS)
    last = check(said, SECONDS)
    # With a time that is far too short for all.
    short = last / 3
    hub.configure(short)
    everyone.find_again(said)
    everyone.fill_anew()

    said = everyone.stop_hub(short)
    check(said, short)
    assert any(one.seconds is None for one in said.values()), said
    hub.configure(SECONDS)
    everyone.find_again(said)


def check(said, seconds):
    """Check that each kernel was suspended in time or was reported as late; return the time of the last suspend."""
    for name, one in said.items():
        if one.seconds is None:
            too_late = r"no time left|not complete in time|did not answer in time"
            assert re.search(too_late, one.why), f"{name}: {one.why}"
        else:
            # The answer of the server takes a moment.
            assert one.seconds < seconds + 3.0, name
    return max((one.seconds for one in said.values() if one.seconds is not None), default=seconds)
