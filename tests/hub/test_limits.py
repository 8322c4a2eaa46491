"""A stop never hangs and never fails: not for kernels that are too large for the time, not for a server that is stuck."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

pytestmark = pytest.mark.slow

#: Too little for a gigabyte and one thread; and a spawner that soon loses patience.
CONFIG = """
c.GpuCkptSpawnerMixin.suspend_timeout = 0.5
c.LocalProcessSpawner.interrupt_timeout = c.LocalProcessSpawner.term_timeout = 1
c.Spawner.args = [*c.Spawner.args, "--GpuCkptDaemon.threads=1"]

def without_the_extension(spawner):
    if spawner.user.name == "plain":
        spawner.args = [*spawner.args, "--ServerApp.jpserver_extensions=jupyter_gpuckpt=False"]

c.Spawner.pre_spawn_hook = without_the_extension
"""


def page_of(user):
    """Return the hub's page about a server that starts or stops, as the user's browser receives it."""
    with httpx.Client(base_url=f"http://127.0.0.1:{user.port}/hub/", timeout=120) as browser:
        form = browser.get("login").text
        token = re.search(r'name="_xsrf" value="([^"]+)"', form)[1]
        browser.post("login", data={"username": user.name, "password": "x", "_xsrf": token})
        return browser.get(f"spawn-pending/{user.name}").text


def test_what_cannot_be_suspended_in_time_does_not_hold_up_the_stop(make_hub):
    hub = make_hub(CONFIG)
    slow, stuck, plain = (hub.user(name) for name in ("slow", "stuck", "plain"))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda user: user.start(), (slow, stuck, plain)))
    pages = [user.open("notebook.ipynb") for user in (slow, stuck)]
    for page in pages:
        page.run("x = 41")
    assert pages[0].run(
        "import numpy; held = numpy.random.default_rng(1).bytes(10**9); print(len(held))"
    ) == (f"{10**9}\n")
    server = hub.api("GET", "users/stuck").json()["servers"][""]["state"]["pid"]
    os.kill(server, signal.SIGSTOP)
    stuck.begin_stop()
    slow.begin_stop()
    plain.begin_stop()
    assert "sessions are being saved" in page_of(stuck)
    for user in (slow, plain, stuck):
        user.wait_until_stopped()
    log = hub.log_path.read_text()
    assert "stuck: not suspended: The server did not answer in time." in log
    assert "plain: not suspended: The server has no jupyter-gpuckpt." in log
    assert "slow: 0 of 1 kernel suspended" in log
    # Nothing is lost all the same: the kernels run on under their daemons, and the next server shows them.
    with ThreadPoolExecutor(2) as pool:
        shown = list(pool.map(lambda user: user.start(), (slow, stuck)))
    assert not any("waiting" in message for messages in shown for message in messages)
    for user, page in zip((slow, stuck), pages, strict=True):
        assert user.page(page.kernel_id).run("print(x + 1)") == "42\n"
