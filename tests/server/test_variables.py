"""What a kernel's variables are, now and in a snapshot, and what of them changed in between."""

import json
import sys
from pathlib import Path

import pytest

#: Says of itself that it is no IPython, so it gets no agent.
OTHER = """
from ipykernel.kernelapp import IPKernelApp
from ipykernel.ipkernel import IPythonKernel
class Other(IPythonKernel):
    implementation = "other"
IPKernelApp.launch_instance(kernel_class=Other)
"""


@pytest.fixture
def server(shared_server):
    """Return a server that other tests of this file use as well."""
    return shared_server


def variables(server, page):
    told = server.get(f"api/gpuckpt/kernels/{page.kernel_id}/variables")["variables"]
    return {variable["name"]: variable for variable in told}


def snapshot(server, page):
    """Take one; gives its id."""
    return server.do("save", page.kernel_id)["result"]["snapshot_id"]


def compared(server, snapshot_id, kernel_id=""):
    return server.get(f"api/gpuckpt/snapshots/{snapshot_id}/compare?kernel_id={kernel_id}")


def test_variables_are_told_without_running_their_code(server):
    page = server.open("told.ipynb")
    page.run("""
import io, numpy
class Loud:
    called = []
    def __len__(self): Loud.called.append("len"); return 1
    def __repr__(self): Loud.called.append("repr"); return ""
    def __sizeof__(self): Loud.called.append("sizeof"); return 1
    def __hash__(self): Loud.called.append("hash"); return 1
    def __eq__(self, other): Loud.called.append("eq"); return True
    def __getattr__(self, name): Loud.called.append(name); raise AttributeError(name)
    def __del__(self): Loud.called.append("del")
loud, holding = Loud(), [Loud()]
array, password, hidden = numpy.zeros((1000, 1000)), "hunter2", 1
_own = 5
""")
    told = variables(server, page)
    assert set(told) == {"loud", "holding", "array", "password", "hidden"}
    assert next(iter(told)) == "array"
    assert told["array"] == {
        "name": "array",
        "kind": "ndarray",
        "bytes": 8_000_000,
        "summary": "float64 (1000, 1000)",
    }
    assert (told["hidden"]["kind"], told["hidden"]["summary"]) == ("int", "1")
    assert told["password"]["summary"] == "7 characters"
    assert told["loud"]["kind"] == "Loud"
    taken = snapshot(server, page)
    compared(server, taken, page.kernel_id)
    assert page.run("print(Loud.called)") == "[]\n"


def test_a_snapshot_lists_the_biggest_variables_that_it_has(server):
    page = server.open("listed.ipynb")
    page.run("import numpy\nfor i in range(30): globals()[f'v{i}'] = numpy.zeros(1000 * i)\ndel i")
    taken = snapshot(server, page)
    page.run("v29 = None")
    listed = server.get(f"api/gpuckpt/snapshots?kernel_id={page.kernel_id}")["snapshots"]
    (info,) = [info for info in listed if info["snapshot_id"] == taken]
    names = [variable["name"] for variable in info["variables"]]
    assert names == [f"v{i}" for i in range(29, 9, -1)]
    assert info["variables"][0]["bytes"] == 29 * 8000


def test_it_is_told_what_changed_since_a_snapshot(server):
    page = server.open("changes.ipynb")
    page.run("""
import numpy, pandas
array = numpy.arange(1_000_000)
frame = pandas.DataFrame({"a": range(1000), "b": [f"text {i}" for i in range(1000)]})
numbers, text, gone, stays = [1, 2, 3], "a", 1, {"x": [1.5, None, b"y"], "z": {1, 2}}
kept_frame = frame.copy()
stream = open("/dev/null")
""")
    taken = snapshot(server, page)
    # What Python does not notice: the same objects, the same sizes.
    page.run("""
array[500_000] += 1
frame.loc[7, "b"] = "txet 7"
numbers[1] = 5
text, new = "b", 7
del gone
""")
    told = compared(server, taken, page.kernel_id)
    assert [variable["name"] for variable in told["added"]] == ["new"]
    assert [variable["name"] for variable in told["removed"]] == ["gone"]
    changed = {change["name"]: change for change in told["changed"]}
    assert set(changed) == {"array", "frame", "numbers", "text"}
    assert changed["array"]["then"] == changed["array"]["now"]
    assert told["unknown"] == ["stream"]
    assert told["same"] == 2

    # The kernel that goes back has nothing that differs.
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id, snapshot_id=taken)
    back = compared(server, taken)
    assert (back["added"], back["removed"], back["changed"]) == ([], [], [])
    assert back["same"] == 7


def test_a_kernel_that_cannot_be_asked_is_refused_with_the_reason(server, eventually):
    page = server.open("refused.ipynb")
    page.run("x = 1")
    taken = snapshot(server, page)
    paths = [f"kernels/{page.kernel_id}/variables", f"snapshots/{taken}/compare"]
    cell = page.send(
        "execute_request", {"code": "y = input()", "silent": False, "allow_stdin": True}
    )
    page.wait_for(lambda message: message["msg_type"] == "input_request")
    for path in paths:
        status, error = server.refused("GET", path)
        assert (status, error["code"]) == (409, "kernel_busy")
    page.send("input_reply", {"value": "2"}, "stdin")
    page.reply(cell)
    assert set(variables(server, page)) == {"x", "y"}
    server.do("suspend", page.kernel_id)
    for path in paths:
        status, error = server.refused("GET", path)
        assert (status, error["code"]) == (409, "kernel_state_conflict")
        assert "suspended" in error["message"]
    assert server.refused("GET", "snapshots/none/compare")[0] == 404


def test_a_busy_kernel_is_saved_with_what_it_has(server):
    page = server.open("busy.ipynb")
    page.run("import numpy, threading\nbig, go_on = numpy.ones(500_000), threading.Event()")
    cell = page.execute(
        "count = 0\nprint('begun')\nwhile count >= 0 and not go_on.is_set(): count += 1"
    )
    page.wait_for(lambda message: message["content"].get("text") == "begun\n")
    taken = snapshot(server, page)
    server.request("POST", f"api/kernels/{page.kernel_id}/interrupt")
    page.reply(cell)
    listed = server.get(f"api/gpuckpt/snapshots?kernel_id={page.kernel_id}")["snapshots"]
    (info,) = [info for info in listed if info["snapshot_id"] == taken]
    assert [v["name"] for v in info["variables"]] == ["big", "go_on", "count"]
    told = compared(server, taken)
    assert [change["name"] for change in told["changed"]] == ["count"]


def test_of_a_kernel_without_an_agent_nothing_is_known(server):
    folder = Path(server.env["JUPYTER_DATA_DIR"]) / "kernels" / "other"
    folder.mkdir(parents=True)
    argv = [sys.executable, "-c", OTHER, "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Other", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    page = server.open("other.ipynb", "other")
    page.run("x = 1")
    taken = snapshot(server, page)
    (info,) = server.get(f"api/gpuckpt/snapshots?kernel_id={page.kernel_id}")["snapshots"]
    assert info["variables"] == []
    asked = {
        f"kernels/{page.kernel_id}/variables": "kernel",
        f"snapshots/{taken}/compare": "snapshot",
    }
    for path, what in asked.items():
        status, error = server.refused("GET", path)
        assert (status, error["code"]) == (409, "kernel_state_conflict")
        assert error["message"] == f"The variables of this {what} are not known."
