"""A kernel whose messages are not as everybody's shows what it says; what cannot be read passes as it is."""

import json
import sys
from pathlib import Path

import pytest

from tests.parameters import some_slow

#: ipykernel, with null for what its messages have none of, as xeus kernels have it (C++, nlohmann::json): in what it says
#: unasked, and in what it says in the middle of a cell.
NULLS = """
from ipykernel.kernelapp import IPKernelApp
from jupyter_client import session

serialize = session.Session.serialize

def with_nulls(self, message, ident=None):
    unasked = not message["parent_header"]
    if unasked or message["header"]["msg_type"] in ("stream", "execute_input"):
        message = {**message, "parent_header": None if unasked else message["parent_header"], "metadata": None}
    return serialize(self, message, ident)

session.Session.serialize = with_nulls
IPKernelApp.launch_instance()
"""


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture
def nulls(server):
    """Return the name of a kernelspec."""
    folder = Path(server.env["JUPYTER_DATA_DIR"]) / "kernels" / "nulls"
    folder.mkdir(parents=True)
    spec = {
        "argv": [sys.executable, "-c", NULLS, "-f", "{connection_file}"],
        "display_name": "Nulls",
        "language": "python",
    }
    (folder / "kernel.json").write_text(json.dumps(spec))
    return "nulls"


@pytest.mark.parametrize("binary", some_slow([False, True], {True}))
def test_a_kernel_with_nulls_shows_what_it_says_and_is_saved_and_suspended(server, nulls, binary):
    page = server.open("nulls.ipynb", kernel=nulls, binary=binary)
    assert page.run("x = 41; print(x)") == "41\n"
    server.do("save", page.kernel_id)
    server.do("suspend", page.kernel_id)
    new = server.page(page.kernel_id, binary=binary)
    assert new.run("print(x + 1)") == "42\n"
    assert page.run("print(x)") == "41\n"


#: What comes where an object should be.
ODD = [b"null", b"[]", b"7", b'{"msg_type": 1, "msg_id": null, "session": []}', b"{", b"\xff", b""]
SAYING = """
kernel = get_ipython().kernel
pack, iopub = kernel.session.pack, kernel.iopub_thread

def say(parts):
    iopub.schedule(lambda: iopub._really_send(parts))

right = [kernel.session.msg_header("odd"), kernel.get_parent()["header"], dict(), dict(name="stdout", text="x")]
for place in range(4):
    for part in {odd!r}:
        parts = [*map(pack, right)]
        parts[place] = part
        say([b"odd", b"<IDS|MSG>", kernel.session.sign(parts), *parts])
for short in [b"odd"], [b"<IDS|MSG>"], [b"<IDS|MSG>", b"", b"{{}}"]:
    say(short)
"""


def test_messages_that_cannot_be_read_keep_nothing_else_from_being_seen(server):
    page = server.open(binary=True)
    page.run(SAYING.format(odd=ODD))
    assert page.run("print(1)") == "1\n"
    assert len(page.unread) > len(ODD)  # they are passed on


def test_requests_that_cannot_be_read_keep_nothing_else_from_being_done(server):
    page = server.open(binary=True)
    page.run("x = 41")
    server.do("suspend", page.kernel_id)
    for part in ODD:
        parts = [b'{"msg_type": "comm_msg", "msg_id": "1"}', b"{}", b"{}", part]
        for place in range(4):
            page.send_parts([*parts[4 - place :], *parts[: 4 - place]])
    assert page.run("print(x + 1)") == "42\n"


def test_no_page_is_told_what_is_for_the_servers_own_subscription(server):
    page = server.open()
    page.run("pass")
    server.do("suspend", page.kernel_id)
    page.run("pass")
    assert "iopub_welcome" not in [kind for kind, _ in page.kinds()]
