"""Periodic saves: of kernels that changed and of no others, while they run on, out of everybody's way."""

import time
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.programs import NOISE

INTERVAL = 0.5
#: Holds memory that does not compress, so that a save takes long enough to be met in flight.
LARGE = NOISE + "; data = [noise(1 << 20) for _ in range(300)]"
#: Counts aloud until somebody says that it is enough.
COUNTING = """
import os, time
count = 0
while not os.path.exists({path!r}):
    time.sleep(0.01)
    count += 1
    print(count, flush=True)
"""


@pytest.fixture
def start(server_with):
    return lambda interval=INTERVAL: server_with(*every(interval))


def every(interval):
    """Return the options of a server that saves every `interval` seconds."""
    # Of a small kernel a save costs as much as ten intervals may.
    return [f"--GpuCkptServer.lose_at_most={interval}", "--GpuCkptServer.autosave_cost=1000"]


def snapshots(server, kernel_id, cause="autosave", after=0.0):
    """Newest first, those begun after a moment."""
    listed = server.get("api/gpuckpt/snapshots")["snapshots"]
    mine = [one for one in listed if one["kernel_id"] == kernel_id and one["created"] > after]
    return [one["snapshot_id"] for one in mine if one["cause"] == cause]


def eventually(condition, server):
    return wait_for(condition, said=server.log)


def saved_once(server, kernel_id, since):
    """Return the only snapshot taken of an idle kernel after its change at `since`."""
    now, began = time.time(), time.monotonic()

    def whole():
        # One that began when the cell had just ended holds all, too. Then no other comes.
        late = time.monotonic() > began + 30 * INTERVAL
        return snapshots(server, kernel_id, after=since if late else now)

    snapshot_id = eventually(whole, server)[0]
    time.sleep(4 * INTERVAL)
    assert snapshots(server, kernel_id, after=since)[0] == snapshot_id
    return snapshot_id


def saving(server, page, change=lambda: None):
    """Wait until the kernel is being saved; where a save was over before it was seen, `change` the kernel for another one."""
    known = []

    def met():
        nonlocal known
        if server.kernel(page.kernel_id)["state"] == "saving":
            return True
        if (now := snapshots(server, page.kernel_id)) != known:
            known = now
            change()
        return False

    eventually(met, server)


def test_a_kernel_that_changed_is_saved_once_and_one_that_did_not_is_not(start):
    server = start()
    page, other = server.open(), server.open("other.ipynb")
    # A page that looks is no change.
    other.reply(other.send("complete_request", {"code": "im", "cursor_pos": 2}))
    since = time.time()
    page.run("x = 41")
    saved_once(server, page.kernel_id, since)
    assert snapshots(server, other.kernel_id) == []
    since = time.time()
    assert page.run("x += 1; print(x)") == "42\n"
    snapshot_id = saved_once(server, page.kernel_id, since)
    view = server.kernel(page.kernel_id)
    assert (view["state"], view["snapshot_id"]) == ("running", snapshot_id)
    # What comes back from it is the kernel as it was, though it has said more since.
    page.run("x = None")
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id, snapshot_id=snapshot_id)
    assert page.run("print(x)") == "42\n"


def test_a_busy_kernel_is_saved_while_it_runs_on(make_server, tmp_path):
    server = make_server(*every(INTERVAL), "--GpuCkptDaemon.max_bytes=1").start()
    page = server.open()
    manual = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    request, enough, seen = page.execute(COUNTING.format(path=str(tmp_path / "enough"))), 3, set()

    def saved_often():
        seen.update(snapshots(server, page.kernel_id))
        return len(seen) >= enough

    eventually(saved_often, server)
    since = time.time()
    (tmp_path / "enough").touch()
    numbers = [int(line) for line in page.output(request).splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))
    last = saved_once(server, page.kernel_id, since)
    eventually(lambda: len(snapshots(server, page.kernel_id)) == 1, server)
    assert snapshots(server, page.kernel_id)[0] == last
    assert snapshots(server, page.kernel_id, "manual") == [manual]


@pytest.mark.slow
def test_the_work_of_a_thread_that_says_nothing_is_a_change(start):
    server = start()
    page = server.open()
    page.run("""
import threading
stop = threading.Event()
def work():
    while not stop.is_set():
        sum(range(10_000))
threading.Thread(target=work, daemon=True).start()
""")
    now = time.time()
    eventually(lambda: len(snapshots(server, page.kernel_id, after=now)) >= 3, server)
    now = time.time()
    page.run("stop.set()")
    saved_once(server, page.kernel_id, now)


def test_what_a_user_wants_comes_first(start):
    server = start(interval=2)
    page = server.open()
    page.run(LARGE)
    saving(server, page, lambda: page.run("pass"))
    done = server.do("save", page.kernel_id, name="mine")
    listed = server.get("api/gpuckpt/snapshots")["snapshots"]
    pinned = [one["snapshot_id"] for one in listed if one["pinned"]]
    assert pinned == [done["result"]["snapshot_id"]]
    assert page.run("print(len(data))") == "300\n"
    # An interrupt does not wait for the end of one.
    endless = page.execute("import time\nwhile True: time.sleep(0.01)")
    page.wait_for(lambda message: message["parent_header"].get("msg_id") == endless)
    saving(server, page)
    server.request("POST", f"api/kernels/{page.kernel_id}/interrupt")
    assert page.reply(endless)["content"]["ename"] == "KeyboardInterrupt"
    page.run("data.append(b'')")
    saving(server, page, lambda: page.run("pass"))
    server.do("suspend", page.kernel_id)
    assert page.run("print(len(data))") == "301\n"


@pytest.mark.slow
def test_a_server_that_stops_in_the_middle_of_one_loses_nothing(start):
    server = start(interval=2)
    page = server.open()
    page.run(LARGE + "; x = 41")
    saving(server, page, lambda: page.run("pass"))
    server.stop()
    assert "Traceback" not in server.log_path.read_text()
    assert "was destroyed" not in server.log_path.read_text()
    server.start()
    page = server.page(page.kernel_id)
    assert page.run("print(x + len(data))") == "341\n"


def test_why_a_kernel_is_not_saved_is_said_once(start):
    server = start()
    page = server.open()
    since = time.time()
    page.run("x = 41")
    saved_once(server, page.kernel_id, since)
    data = Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"])
    # Not even root can write packs into a file.
    packs, away = data / "store" / "packs", data / "store" / "away"
    packs.rename(away)
    packs.touch()
    try:
        page.run("x = 42")

        def failed():
            log = (data / "log" / "gpuckptd.log").read_text()
            return log.count(f"save of kernel {page.kernel_id} failed;")

        eventually(lambda: failed() >= 3, server)
        assert server.log_path.read_text().count("is not saved periodically") == 1
        assert page.run("print(x)") == "42\n"
        since = time.time()
    finally:
        packs.unlink()
        away.rename(packs)
    saved_once(server, page.kernel_id, since)


@pytest.mark.slow
def test_a_restarted_kernel_is_not_the_one_that_changed(start):
    server = start()
    page = server.open()
    since = time.time()
    page.run("x = 41")
    saved_once(server, page.kernel_id, since)
    now = time.time()
    server.request("POST", f"api/kernels/{page.kernel_id}/restart", json={})
    time.sleep(4 * INTERVAL)
    assert snapshots(server, page.kernel_id, after=now) == []
    now = time.time()
    page.run("x = 42")
    saved_once(server, page.kernel_id, now)


def test_it_is_told_since_when_a_kernel_is_not_saved(start):
    """From that pages and `ps` compute what would be lost with the machine."""
    server, began = start(interval=5.0), time.time()
    page = server.open()
    view = server.kernel(page.kernel_id)
    assert (view["changed_at"], view["autosave_seconds"]) == (None, 5.0)
    page.run("x = 41")
    changed_at = eventually(lambda: server.kernel(page.kernel_id)["changed_at"], server)
    assert began <= changed_at <= time.time()
    eventually(lambda: snapshots(server, page.kernel_id), server)
    eventually(lambda: server.kernel(page.kernel_id)["changed_at"] is None, server)
    page.run("x = 42")
    assert eventually(lambda: server.kernel(page.kernel_id)["changed_at"], server) > changed_at


def test_a_save_that_costs_too_much_for_its_interval_makes_it_longer_and_that_is_told(server_with):
    server = server_with(f"--GpuCkptServer.lose_at_most={INTERVAL}")
    page = server.open()
    assert server.kernel(page.kernel_id)["autosave_seconds"] == INTERVAL
    page.run("x = 41")
    first = eventually(lambda: snapshots(server, page.kernel_id), server)[0]
    eventually(lambda: server.kernel(page.kernel_id)["changed_at"] is None, server)
    page.run("x = 42")
    eventually(lambda: server.kernel(page.kernel_id)["changed_at"], server)
    view = server.kernel(page.kernel_id)
    # A save computes for a tenth of a second at least, which is a twentieth of this.
    assert view["autosave_seconds"] > 2
    assert snapshots(server, page.kernel_id) == [first]


@pytest.mark.slow
def test_the_next_one_comes_as_soon_as_that_is_not_too_much(server_with):
    server = server_with(*every(INTERVAL)[:1], "--GpuCkptServer.autosave_cost=0.5")
    page = server.open()
    for number in range(3):
        page.run(f"x = {number}")
        eventually(lambda number=number: len(snapshots(server, page.kernel_id)) > number, server)
    made = [one["created"] for one in server.get("api/gpuckpt/snapshots")["snapshots"]]
    told = server.kernel(page.kernel_id)["autosave_seconds"]
    assert max(made) - min(made) > told
