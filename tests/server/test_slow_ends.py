"""Servers whose process ends slowly: they stop all the same, and the next server gets their kernels."""

import signal
import threading
from pathlib import Path

import httpx

from tests.conftest import wait_for

#: A page of the files is being answered, in a thread of AnyIO, until the event loop has stopped.
SLOW_CONTENTS = """
import asyncio, time, anyio
from pathlib import Path
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
class Slow(AsyncLargeFileManager):
    async def get(self, path, **arguments):
        loop = asyncio.get_running_loop()
        def work():
            Path(self.root_dir, "begun").touch()
            while loop.is_running():
                time.sleep(0.01)
        await anyio.to_thread.run_sync(work)
c.ServerApp.contents_manager_class = Slow
"""

#: A thread that is waited for when the process ends, as one that is stuck in a file system.
STUCK = """
import threading, time
from pathlib import Path
def wait():
    while not Path({path!r}).exists():
        time.sleep(0.01)
threading.Thread(target=wait).start()
"""


def configure(server, text):
    config = Path(server.env["JUPYTER_CONFIG_DIR"])
    config.mkdir(exist_ok=True)
    (config / "jupyter_server_config.py").write_text(text)


def test_a_request_in_flight_does_not_keep_a_server_from_ending(make_server):
    server = make_server()
    configure(server, SLOW_CONTENTS)
    server.start()

    def ask():
        try:
            server.request("GET", "api/contents", ok=False)
        except httpx.TransportError:
            return  # it has ended

    asking = threading.Thread(target=ask)
    asking.start()
    wait_for((server.root / "begun").exists)
    server.request("POST", "api/shutdown")
    server.process.wait(120)
    asking.join()


def test_the_next_server_has_the_kernels_of_one_that_hangs_at_its_end(make_server, tmp_path):
    first, second = make_server(), make_server()
    end = tmp_path / "end"
    configure(first, STUCK.format(path=str(end)))
    first.start()
    configure(second, "")
    page = first.open()
    page.run("x = 41")
    second.start()
    [elsewhere] = second.get("api/gpuckpt/kernels")["elsewhere"]
    assert (elsewhere["kernel_id"], elsewhere["path"]) == (page.kernel_id, "notebook.ipynb")
    assert "another server" in elsewhere["reason"]
    # It says whose they are, and has them when the first one is done with them.
    assert (
        f"Kernel {page.kernel_id} (notebook.ipynb, running) is a session of another" in second.log()
    )
    first.process.send_signal(signal.SIGTERM)
    wait_for(lambda: [kernel["id"] for kernel in second.get("api/kernels")] == [page.kernel_id])
    assert first.process.poll() is None
    assert second.page(page.kernel_id).run("print(x + 1)") == "42\n"
    end.touch()
    first.process.wait(120)


#: The server still answers requests, after it has left its kernels to the next one.
LATE = """
import asyncio
from pathlib import Path
from jupyter_gpuckpt.server.policies.server_stop import ServerStop
stopped = ServerStop.server_stopped
async def wait(self):
    Path({begun!r}).touch()
    while not Path({end!r}).exists():
        await asyncio.sleep(0.01)
    await stopped(self)
ServerStop.server_stopped = wait
"""


def test_an_open_page_is_never_told_that_a_kernel_is_gone_that_the_next_server_has(
    make_server, tmp_path
):
    begun, end = tmp_path / "begun", tmp_path / "end"
    server = make_server()
    configure(server, LATE.format(begun=str(begun), end=str(end)))
    server.start()
    page = server.open()
    page.run("x = 41")
    # A stopping server takes no further connections, but goes on answering those it has, such as a browser's.
    headers = {"Authorization": f"token {server.token}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers=headers) as browser:
        sessions = browser.get("/api/sessions").json()
        server.process.send_signal(signal.SIGTERM)
        wait_for(begun.exists)
        # JupyterLab takes this status as a lost connection, and tries again.
        for path in ("sessions", "kernels", f"kernels/{page.kernel_id}"):
            assert browser.get(f"/api/{path}").status_code == 503
        end.touch()
    server.process.wait(120)
    configure(server, "")
    server.start()
    assert [one["id"] for one in server.get("api/sessions")] == [one["id"] for one in sessions]
    assert server.page(page.kernel_id).run("print(x + 1)") == "42\n"


#: The stop fails before any kernel is suspended.
FAILING = """
from jupyter_gpuckpt.server.policies.server_stop import ServerStop
async def fail(self):
    raise OSError("not today")
ServerStop.server_stops = fail
"""


def test_a_server_ends_though_its_stop_fails_and_the_next_one_has_its_kernels(make_server):
    server = make_server()
    configure(server, FAILING)
    server.start()
    page = server.open()
    page.run("x = 41")
    server.stop()
    assert "not today" in server.log()
    server.start()
    assert server.page(page.kernel_id).run("print(x + 1)") == "42\n"
