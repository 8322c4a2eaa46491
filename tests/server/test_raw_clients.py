"""Clients that are connected to a kernel of the server directly, past the server: jupyter console, a blocking client."""

from contextlib import suppress
from queue import Empty

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
    said = printed(client, "%load_ext jupyter_gpuckpt\n%gpuckpt suspend")
    assert f"jupyter gpuckpt resume {page.kernel_id}" in said
    eventually(lambda: clean_server.kernel(page.kernel_id)["state"] == "suspended")
    clean_server.do("resume", page.kernel_id)
    assert printed(client, "print('back')") == "back\n"


@pytest.mark.slow
def test_the_use_of_processors_is_not_negative_after_a_resume(clean_server, page, client):
    def usage():
        # A message on the control channel may be lost where a resume has just cut the connection.
        while True:
            client.control_channel.send(client.session.msg("usage_request", {}))
            with suppress(Empty):
                while (reply := client.get_control_msg(timeout=5))["msg_type"] != "usage_reply":
                    pass
                return reply["content"]["kernel_cpu"]

    used = "import time\nwhile time.process_time() < 3: pass"
    usage()
    page.run(used)
    usage()
    clean_server.do("suspend", page.kernel_id)
    clean_server.do("resume", page.kernel_id)
    page.run("pass")
    assert usage() >= 0
