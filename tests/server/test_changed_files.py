"""Files that change while a notebook's kernel is suspended, as pages and programs see them."""

import json

import pytest

from jupyter_gpuckpt.server.events.ended_operations import SCHEMA_ID
from tests.conftest import wait_for

MAPPED = """
import numpy as np
np.save("array.npy", np.ones(500_000))
array = np.load("array.npy", mmap_mode="r")
"""


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture
def page(server):
    page = server.open("notebook.ipynb")
    page.run(MAPPED)
    return page


def failed(server, operation):
    """Return the error of an operation, which must fail."""
    ended = server.finish(operation)
    assert ended["state"] == "failed", ended
    return ended["error"]


@pytest.mark.parametrize("is_gone", [False, True], ids=["shorter", "gone"])
def test_a_kernel_is_not_resumed_with_less_of_a_file_unless_its_user_wants_it(
    server, page, is_gone
):
    kernel_id, file = page.kernel_id, server.root / "array.npy"
    suspended = server.do("suspend", kernel_id)["result"]["snapshot_id"]
    former = file.rename(server.root / "former.npy")
    if not is_gone:
        file.write_bytes(former.read_bytes()[: 1 << 20])
    error = failed(server, server.begin("resume", kernel_id))
    assert (error["code"], str(file) in error["message"]) == ("files_changed", True)
    # A cell does not answer the question.
    reply = page.reply(page.execute("array.sum()"))["content"]
    assert reply["status"] == "error"
    assert str(file) in json.dumps(reply)
    assert server.kernel(kernel_id)["state"] == "suspended"
    # Neither does a branch or a way back.
    branch = server.request("POST", f"api/gpuckpt/snapshots/{suspended}/branch", json={}).json()
    assert failed(server, branch)["code"] == "files_changed"
    back = {"json": {"snapshot_id": suspended}}
    status, error = server.refused("POST", f"kernels/{kernel_id}/roll_back", **back)
    assert (status, error["code"]) == (409, "files_changed")
    assert str(file) in error["message"]
    forced = server.do("resume", kernel_id, force=True)["result"]
    word = "an empty one is in its place" if is_gone else "SIGBUS"
    assert any(str(file) in text and word in text for text in forced["warnings"])
    first = "'gone'" if is_gone else "array[0]"
    assert page.run(f"print(array.shape, {first})").startswith("(500000,)")
    # Back with the file, from the snapshot that has stayed.
    former.replace(file)
    restored = server.do("roll_back", kernel_id, snapshot_id=suspended)["result"]
    assert not any(str(file) in text for text in restored["warnings"])
    assert page.run("print(array.sum())") == "500000.0\n"


def test_other_content_is_told_where_a_cell_brings_the_kernel_back(server, page, make_listener):
    file = server.root / "array.npy"
    server.do("suspend", page.kernel_id)
    heard = make_listener(SCHEMA_ID).heard
    with file.open("r+b") as data:
        data.seek(-8, 2)
        data.write(b"\0" * 8)
    assert page.run("print(array.sum())") == "499999.0\n"
    [ended] = wait_for(lambda: [event for event in heard if event["kind"] == "resume"])
    assert [str(file) in text for text in ended["result"]["warnings"]] == [True]
