"""What pages are told about kernels beside their state: whose they are, what they use, what a resume would take."""

import time

import pytest

from jupyter_gpuckpt.server.events import kernel_events

MB = 1_000_000


@pytest.fixture
def server(make_server):
    return make_server().start()


@pytest.mark.slow
def test_pages_hear_what_a_kernel_uses_without_asking(server, make_listener, eventually):
    listener = make_listener(kernel_events.KERNEL)
    began = time.time()
    page = server.open("folder.ipynb")
    small = eventually(lambda: server.kernel(page.kernel_id)["memory_bytes"])
    shown = server.kernel(page.kernel_id)
    assert (shown["path"], shown["kernel_name"]) == ("folder.ipynb", "python3")
    assert (shown["gpu_bytes"], shown["gpu_utilization"]) == (0, None)
    assert (shown["suspended_bytes"], shown["resume_seconds"]) == (0, None)
    assert began <= shown["since"] <= time.time()
    page.run("data = bytearray(b'x') * 90_000_000")
    eventually(lambda: listener.heard and listener.heard[-1]["memory_bytes"] > small + 60 * MB)

    session = {"path": "moved.ipynb", "name": "moved.ipynb"}
    server.request("PATCH", f"api/sessions/{page.session_id}", json=session)
    eventually(lambda: listener.heard[-1]["path"] == "moved.ipynb")

    server.do("suspend", page.kernel_id)
    suspended = server.kernel(page.kernel_id)
    assert suspended["memory_bytes"] == 0
    assert suspended["suspended_bytes"] > 90 * MB
    assert suspended["resume_seconds"] > 0
    assert suspended["since"] > shown["since"]
    server.do("resume", page.kernel_id)
    eventually(lambda: server.kernel(page.kernel_id)["memory_bytes"] > 90 * MB)
    assert server.kernel(page.kernel_id)["suspended_bytes"] == 0


def test_a_kernel_that_is_not_managed_or_has_no_notebook_has_a_name(server_with):
    server = server_with("--KernelProvisionerFactory.default_provisioner_name=local-provisioner")
    kernel = server.request("POST", "api/kernels", json={"name": "python3"}).json()
    shown = server.kernel(kernel["id"])
    assert not shown["managed"]
    assert (shown["path"], shown["kernel_name"]) == ("python3", "python3")
    assert (shown["memory_bytes"], shown["since"]) == (0, 0.0)
