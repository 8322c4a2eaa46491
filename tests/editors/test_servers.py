"""A Jupyter server and an editor, one after the other, with the same notebook and kernel."""

import json
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.server.conftest import Server

pytestmark = pytest.mark.slow


@pytest.fixture
def server(desk, tmp_path):
    """Return a server that does not run yet, for the folder of the desk; idle kernels without an editor are suspended at once."""
    config = Path(desk.env["JUPYTER_CONFIG_DIR"])
    config.mkdir(exist_ok=True)
    (config / "jupyter_gpuckpt_config.py").write_text("c.GpuCkptRelay.keep_minutes = 0\n")
    made = Server(tmp_path, desk.env)
    desk.folder = made.root
    yield made
    if made.process is not None:
        made.kill()


def leave(desk, path):
    """Give a notebook a kernel in an editor that crashes; return the kernel's id when any server may take it over."""
    window = desk.window()
    window.start(desk.spec, path)
    window.run("x = 41")
    window.kill_all()
    kernel_id = desk.record_of(path)["kernel_id"]
    state = Path(desk.env["JUPYTER_GPUCKPT_DATA_DIR"], "state", "kernels", kernel_id, "record.json")
    wait_for(lambda: json.loads(state.read_bytes())["owner"]["pid"] == 0)
    return kernel_id


def test_a_running_server_goes_on_with_an_editors_kernel_and_an_editor_with_a_servers(desk, server):
    server.start()
    path = desk.notebook("n.ipynb")
    kernel_id = leave(desk, path)
    other = server.open("other.ipynb")
    assert other.kernel_id != kernel_id
    page = server.open("n.ipynb")
    assert page.kernel_id == kernel_id
    assert page.run("x += 1; print(x)") == "42\n"
    sessions = [one for one in server.get("api/sessions") if one["kernel"]["id"] == kernel_id]
    assert [one["path"] for one in sessions] == ["n.ipynb"]
    server.stop()
    window = desk.window()
    window.start(desk.spec, path)
    assert window.run("print(x + 1)")[0] == "43\n"
    assert desk.record_of(path)["kernel_id"] == kernel_id


def test_a_server_that_starts_lists_an_editors_session(desk, server):
    path = desk.notebook("m.ipynb")
    kernel_id = leave(desk, path)
    server.start()
    listed = {one["path"]: one["kernel"]["id"] for one in server.get("api/sessions")}
    assert listed == {"m.ipynb": kernel_id}
    # An editor that opens the notebook now does not take it away.
    window = desk.window()
    window.start(desk.spec, path)
    _, outputs = window.run("x")
    assert ("error", "NameError") in outputs
    assert "A Jupyter server has this notebook's kernel" in outputs[0][1]
    assert server.page(kernel_id).run("print(x)") == "41\n"
