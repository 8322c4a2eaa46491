"""Kernels of templates under a Jupyter server: they are started, restarted, suspended and adopted like any others."""

import subprocess
import sys

import pytest

from tests.conftest import wait_for


@pytest.fixture(scope="module")
def server(shared_server, tmp_path_factory):
    """Return a server that offers a template's kernels."""
    recipe = tmp_path_factory.mktemp("recipe") / "recipe.py"
    recipe.write_text("import numpy as np\ndata = np.arange(10)\n")
    words = [sys.executable, "-m", "jupyter_gpuckpt.cli", "template"]
    made = subprocess.run(
        [*words, "create", "ready", "--from", str(recipe)],
        env=shared_server.env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    yield shared_server
    subprocess.run([*words, "rm", "ready"], env=shared_server.env, timeout=300, check=True)


FACTS = "import os; print(data.sum(), os.getcwd(), os.environ['JPY_SESSION_NAME'], len(In))"


@pytest.mark.slow
def test_a_kernel_of_the_launcher_is_a_copy(server):
    specs = server.get("api/kernelspecs")["kernelspecs"]
    assert specs["ready"]["spec"]["display_name"] == "Python 3 (ready)"
    assert "logo-svg" in specs["ready"]["resources"]
    page = server.open("of-a-template.ipynb", kernel="ready")
    assert "is no copy" not in server.log()
    printed = page.run(FACTS).split()
    assert printed[:2] == ["45", str(server.root)]
    assert printed[2].endswith("of-a-template.ipynb")
    assert printed[3] == "2"
    page.run("data[0] = 100")
    server.request("POST", f"api/kernels/{page.kernel_id}/restart")
    assert page.run(FACTS).split()[0] == "45"
    page.run("data[0] = 100")
    server.do("suspend", page.kernel_id)
    server.do("resume", page.kernel_id)
    assert page.run("print(data.sum())") == "145\n"
    assert "is no copy" not in server.log()
    server.request("DELETE", f"api/sessions/{page.session_id}")


@pytest.mark.slow
def test_the_next_server_lists_a_copy_again(server):
    page = server.open("adopted.ipynb", kernel="ready")
    page.run("data[0] = 100")
    server.kill()
    server.start()
    wait_for(lambda: any(k["id"] == page.kernel_id for k in server.get("api/kernels")))
    again = server.page(page.kernel_id)
    assert again.run("print(data.sum())") == "145\n"
    server.stop()
    server.start()
    wait_for(lambda: any(k["id"] == page.kernel_id for k in server.get("api/kernels")))
    assert server.page(page.kernel_id).run("print(data.sum())") == "145\n"
