"""A cell that runs when the server stops goes on under the next one, and what it says meanwhile waits for its pages."""

import stat
from pathlib import Path

import pytest

from tests.conftest import wait_for

#: Runs until the test has made a file.
UNTIL_TOLD = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
DONE_WHEN_TOLD = f"{UNTIL_TOLD}\nprint('done')"
COUNT_UNTIL = """
import os, time
number = 0
while not os.path.exists("go"):
    print(number)
    number += 1
    time.sleep(0.005)
"""


@pytest.fixture
def server(clean_server):
    return clean_server


def stop(server):
    """End the server with its pages still open."""
    server.process.terminate()
    assert server.process.wait(180) == 0, server.log()
    for page in server.pages:
        page.close()


def shown(request, *pages):
    """Return the lines that pages were shown, one page after the other.

    A line may end on the next page: Python writes a line and its end separately.
    """
    return "".join(page.printed(request) for page in pages).splitlines()


def states_told(page):
    return [
        m["content"]["execution_state"] for m in list(page.received) if m["msg_type"] == "status"
    ]


def is_over(page, request):
    return any(
        m["parent_header"].get("msg_id") == request
        and m["content"].get("execution_state") == "idle"
        for m in list(page.received)
    )


def test_a_running_cell_goes_on_and_no_page_misses_or_sees_twice_what_it_prints(server):
    asker = server.open()
    other = server.page(asker.kernel_id, binary=True)
    request = asker.execute(COUNT_UNTIL)
    wait_for(lambda: len(shown(request, asker)) > 50 and len(shown(request, other)) > 50)
    stop(server)
    server.start()
    wait_for(lambda: server.kernel(asker.kernel_id)["state"] == "running")
    # Nobody has connected yet, and it counts.
    new = server.page(asker.kernel_id)
    wait_for(lambda: shown(request, new))
    again = [server.page(old.kernel_id, client_id=old.client_id) for old in (asker, other)]
    (server.root / "go").touch()
    wait_for(lambda: all(is_over(page, request) for page in [new, *again]))
    everything = shown(request, new)
    assert everything == [str(number) for number in range(len(everything))]
    for old, page in zip((asker, other), again, strict=True):
        assert shown(request, old, page) == everything
        assert len(shown(request, old)) > 50
    again[0].wait_for(
        lambda m: m["msg_type"] == "execute_reply"
    )  # it may come after the last output
    replies = [m for m in again[0].received if m["msg_type"] == "execute_reply"]
    assert [m["content"]["status"] for m in replies] == ["ok"]
    assert again[0].run("print(number)") == f"{len(everything)}\n"


def test_a_cell_that_ends_before_a_page_comes_is_shown_with_its_reply(server):
    page = server.open()
    request = page.execute(DONE_WHEN_TOLD)
    page.wait_for(lambda m: m["msg_type"] == "execute_input")
    stop(server)
    (server.root / "go").touch()
    server.start()
    wait_for(
        lambda: server.get(f"api/kernels/{page.kernel_id}")["execution_state"] == "idle",
        said=lambda: f"{server.get('api/kernels')}{server.log()}",
    )
    again = server.page(page.kernel_id, client_id=page.client_id)
    assert again.output(request) == "done\n"
    # Once it has been seen, it is gone.
    new = server.page(page.kernel_id)
    assert new.run("print(1)") == "1\n"
    assert new.printed(request) == ""


def test_a_reload_in_the_middle_of_a_cell_shows_it_from_its_beginning(server):
    page = server.open()
    request = page.execute(COUNT_UNTIL)
    wait_for(lambda: len(shown(request, page)) > 20)
    page.close()
    new = server.page(page.kernel_id)
    wait_for(lambda: shown(request, new))
    (server.root / "go").touch()
    wait_for(lambda: is_over(new, request))
    everything = shown(request, new)
    assert len(everything) > 20
    assert everything == [str(number) for number in range(len(everything))]


def test_a_kernel_that_was_suspended_busy_by_somebody_stays_so(server):
    page = server.open()
    page.execute("import time; time.sleep(1000)")
    page.wait_for(lambda m: m["msg_type"] == "execute_input")
    server.do("suspend", page.kernel_id)
    stop(server)
    server.start()
    assert server.get(f"api/kernels/{page.kernel_id}")["execution_state"] == "suspended"
    new = server.page(page.kernel_id)
    new.send("kernel_info_request", {})
    new.wait_for(lambda m: m["msg_type"] == "kernel_info_reply")
    assert server.kernel(page.kernel_id)["state"] == "suspended"
    assert server.kernel(page.kernel_id)["cell_paused"]
    # A page that was told "idle" meanwhile learns that the cell goes on.
    server.do("resume", page.kernel_id)
    wait_for(lambda: states_told(new)[-1] == "busy")
    assert not server.kernel(page.kernel_id)["cell_paused"]
    server.request("POST", f"api/kernels/{page.kernel_id}/interrupt")


def test_without_resume_busy_it_waits_for_somebody(server_with):
    server = server_with("--GpuCkptServer.resume_busy=False")
    page = server.open()
    request = page.execute(COUNT_UNTIL)
    wait_for(lambda: shown(request, page))
    stop(server)
    (server.root / "go").touch()
    server.start()
    assert server.kernel(page.kernel_id)["state"] == "suspended"
    again = server.page(page.kernel_id, client_id=page.client_id)
    assert again.run("print('next')") == "next\n"
    everything = shown(request, page, again)
    assert everything == [str(number) for number in range(len(everything))]


def test_what_does_not_fit_is_counted_and_said(server_with):
    server = server_with("--GpuCkptServer.kept_output_bytes=20000")
    page = server.open()
    page.run("pass")
    request = page.execute(
        "for number in range(200): display({'text/plain': 'x' * 1000}, raw=True)"
    )
    page.reply(request)
    page.close()
    wait_for(lambda: server.get(f"api/kernels/{page.kernel_id}")["connections"] == 0)
    # Nobody is there while this one runs.
    silent = server.page(page.kernel_id)
    silent.execute(
        f"{UNTIL_TOLD}\nfor number in range(200): display({{'text/plain': 'x' * 1000}}, raw=True)"
    )
    silent.wait_for(lambda m: m["msg_type"] == "execute_input")
    silent.close()
    wait_for(lambda: server.get(f"api/kernels/{page.kernel_id}")["connections"] == 0)
    (server.root / "go").touch()
    wait_for(lambda: server.get(f"api/kernels/{page.kernel_id}")["execution_state"] == "idle")
    new = server.page(page.kernel_id)
    said = new.wait_for(lambda m: m["content"].get("name") == "stderr")["content"]["text"]
    displays = [m for m in new.received if m["msg_type"] == "display_data"]
    assert 0 < len(displays) < 20
    assert f"{200 - len(displays)} messages" in said


def test_nothing_is_left_on_disk_when_everything_was_seen(server):
    page = server.open()
    kept = Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"], "output", page.kernel_id)
    request = page.execute(f"print(1)\n{UNTIL_TOLD}")
    wait_for(kept.exists)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    (server.root / "go").touch()
    page.reply(request)
    wait_for(lambda: not kept.exists())


def test_a_server_that_is_killed_costs_no_line_and_no_reply(server):
    asker = server.open()
    other = server.page(asker.kernel_id, binary=True)
    request = asker.execute(COUNT_UNTIL)
    wait_for(lambda: len(shown(request, asker)) > 50 and len(shown(request, other)) > 50)
    server.process.kill()
    server.process.wait()
    for page in server.pages:
        page.close()
    server.start()
    new = server.page(asker.kernel_id)
    again = [server.page(old.kernel_id, client_id=old.client_id) for old in (asker, other)]
    wait_for(lambda: all(shown(request, page) for page in [new, *again]))
    (server.root / "go").touch()
    wait_for(lambda: all(is_over(page, request) for page in [new, *again]))
    everything = shown(request, new)
    assert everything == [str(number) for number in range(len(everything))]
    for old, page in zip((asker, other), again, strict=True):
        assert shown(request, old, page) == everything
    assert again[0].reply(request)["content"]["status"] == "ok"


def test_a_cell_that_ends_while_there_is_no_server_is_answered(server):
    page = server.open()
    go, done = server.root / "go", server.root / "done"
    request = page.execute(f"{DONE_WHEN_TOLD}\nos.mkdir('done')")
    page.wait_for(lambda m: m["msg_type"] == "execute_input")
    server.process.kill()
    server.process.wait()
    page.close()
    go.touch()
    wait_for(done.exists)
    server.start()
    again = server.page(page.kernel_id, client_id=page.client_id)
    assert again.output(request) == "done\n"
    assert again.run("print(1)") == "1\n"
