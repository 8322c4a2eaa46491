"""HTTP calls to the daemon."""

import logging
import subprocess
import sys

import httpx

from jupyter_gpuckpt.client.transport import ANYWHERE


def test_requests_to_the_daemon_are_not_in_the_log_of_a_user_who_logs_httpx(caplog):
    transport = httpx.MockTransport(lambda request: httpx.Response(200))
    with caplog.at_level(logging.INFO, "httpx"):
        with httpx.Client(transport=transport, **ANYWHERE) as client:
            client.get("/handshake")
        assert caplog.messages == []
        with httpx.Client(transport=transport) as client:
            client.get("http://example.org/gpuckptd")
    assert len(caplog.messages) == 1


def test_the_http_library_is_imported_without_its_command_line_which_takes_as_long_again():
    """Every command, server and client of a kernel starts with this import; httpx is as whole as without click."""
    code = (
        "import sys, jupyter_gpuckpt.client.transport, httpx, jupyter_gpuckpt.client.quick_httpx as quick;"
        "assert quick.httpx is httpx;"
        "print([m for m in sys.modules if m.startswith(('httpx._main', 'click', 'rich', 'pygments'))]);"
        "import httpx._main; print(callable(httpx._main.main))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "True"]
