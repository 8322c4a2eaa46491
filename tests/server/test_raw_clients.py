"""Clients that are connected to a kernel of the server directly, past the server: jupyter console, a blocking client."""

import pytest
from jupyter_client.blocking import BlockingKernelClient

from tests.blocking_clients import printed


@pytest.fixture
def page(clean_server):
    return clean_server.open()


@pytest.fixture
def client(page):
    """Return a client of the page's kernel."""
    code = "from ipykernel.connect import get_connection_file; print(get_connection_file())"
    made = BlockingKernelClient(connection_file=page.run(code).strip())
    made.load_connection_file()
    made.start_channels()
    made.wait_for_ready(timeout=60)
    yield made
    made.stop_channels()


def test_a_client_beside_a_page_gets_all_output_of_its_first_cell_after_a_resume(
    clean_server, page, client
):
    assert printed(client, "x = 41; print(x)") == "41\n"
    clean_server.do("suspend", page.kernel_id)
    assert page.run("x += 1; print(x)") == "42\n"
    assert printed(client, "x += 1; print(x)") == "43\n"


def test_a_client_that_cannot_resume_a_kernel_is_told_how(clean_server, page, client, eventually):
    said = printed(client, "%load_ext jupyter_gpuckpt\n%suspend")
    assert f"jupyter gpuckpt resume {page.kernel_id}" in said
    eventually(lambda: clean_server.kernel(page.kernel_id)["state"] == "suspended")
    clean_server.do("resume", page.kernel_id)
    assert printed(client, "print('back')") == "back\n"
