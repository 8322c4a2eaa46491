"""A restart at the same moment as another request for the kernel."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest


@pytest.fixture
def server(clean_server):
    return clean_server


def together(server, *requests):
    """Send requests at the same moment; return their responses."""
    start = Barrier(len(requests))

    def sent(request):
        start.wait()
        return server.request(*request, ok=False)

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(sent, requests))


@pytest.mark.parametrize("attempt", range(3))
def test_a_kernel_is_shut_down_although_it_is_being_restarted(server, attempt):
    page = server.open()
    page.run("x = 1")
    path = f"api/kernels/{page.kernel_id}"
    restarted, deleted = together(server, ("POST", f"{path}/restart"), ("DELETE", path))
    assert deleted.status_code == 204, deleted.text
    assert restarted.status_code in (200, 404), restarted.text
    assert server.get("api/kernels") == []


def test_a_kernel_that_is_gone_is_not_restarted(server):
    page = server.open()
    server.request("DELETE", f"api/kernels/{page.kernel_id}")
    refused = server.request("POST", f"api/kernels/{page.kernel_id}/restart", ok=False)
    assert refused.status_code == 404


@pytest.mark.parametrize("verb", ["save", "suspend"])
def test_a_kernel_that_is_being_restarted_is_saved_after_it(server, verb):
    page = server.open()
    page.run("x = 1")
    own = f"api/gpuckpt/kernels/{page.kernel_id}/{verb}"
    restart = ("POST", f"api/kernels/{page.kernel_id}/restart")
    restarted, begun = together(server, restart, ("POST", own))
    assert restarted.status_code == 200
    assert begun.status_code == 202, begun.text
