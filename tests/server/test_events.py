"""What pages hear about kernels."""

import time

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.server.events.kernel_events import KERNEL, PROGRESS_SECONDS
from jupyter_gpuckpt.wire import calls
from tests.conftest import wait_for
from tests.programs import NOISE


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture
def listener(make_listener):
    return make_listener(KERNEL)


def states(listener):
    """Return the states in the events, without repetition."""
    found = []
    for event in listener.heard:
        if not found or found[-1] != event["state"]:
            found.append(event["state"])
    return found


def test_every_change_of_state_is_told_with_the_kernel_as_rest_shows_it(server, listener):
    page = server.open()
    page.run("x = 1")
    server.do("save", page.kernel_id)
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id)
    wait_for(lambda: states(listener)[-2:] == ["resuming", "running"])
    wait_for(lambda: not listener.heard[-1]["operation"])
    expected = ["saving", "running", "suspending", "suspended", "resuming", "running"]
    assert [s for s in states(listener) if s != "starting"][-6:] == expected
    # What it uses may have been measured in between.
    shown = server.kernel(page.kernel_id)
    wait_for(lambda: any({key: e[key] for key in shown} == shown for e in list(listener.heard)))


def test_progress_is_told_but_not_too_often(server, listener):
    page = server.open()
    page.run(NOISE + "; data = noise(400_000_000)")
    began = time.monotonic()
    operation = server.do("save", page.kernel_id)
    wait_for(lambda: states(listener)[-2:] == ["saving", "running"])
    # At least as long as the server has told of it.
    seconds = time.monotonic() - began
    told = [e["operation"] for e in listener.heard if e["operation"]]
    assert {o["operation_id"] for o in told} == {operation["operation_id"]}
    assert max(o["progress"]["done_bytes"] for o in told) > 0
    stored = [o for o in told if o["progress"]["stage"] == "store"]
    assert len(stored) <= seconds / PROGRESS_SECONDS + 2


def test_what_the_command_line_does_is_told_and_pages_come_back(server, listener, monkeypatch):
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    page = server.open()
    page.run("x = 0")
    # More than once: what the kernel says before a page has subscribed again is lost now and then, not every time.
    for number in range(1, 6):
        with Client.connect() as client:
            client.wait(client.send(calls.suspend(page.kernel_id)).operation_id)
            wait_for(lambda: states(listener)[-1:] == ["suspended"])
            client.wait(client.send(calls.resume(page.kernel_id)).operation_id)
        assert page.run("x += 1; print(x)") == f"{number}\n"
        wait_for(
            lambda: states(listener)[-4:] == ["suspending", "suspended", "resuming", "running"]
        )
