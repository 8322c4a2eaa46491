"""What is refused, with a running kernel: the kernels that are not managed, and operations that do not fit."""

import json
from pathlib import Path

import pytest

from tests.programs import NOISE, SANDBOX


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture
def stock_kernelspec(server):
    """Write a kernelspec for the local provisioner."""
    folder = Path(server.env["JUPYTER_DATA_DIR"]) / "kernels" / "stock"
    folder.mkdir(parents=True)
    spec = {
        "argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Stock",
        "language": "python",
        "metadata": {"kernel_provisioner": {"provisioner_name": "local-provisioner"}},
    }
    (folder / "kernel.json").write_text(json.dumps(spec))


@pytest.mark.usefixtures("stock_kernelspec")
def test_a_kernel_of_another_provisioner_is_shown_and_refused(server):
    page = server.open(kernel="stock")
    kernel = server.kernel(page.kernel_id)
    assert (kernel["managed"], kernel["state"]) == (False, "running")
    assert "LocalProvisioner" in kernel["reason"]
    assert kernel["hint"]
    for verb in ("save", "suspend", "resume"):
        status, error = server.refused("POST", f"kernels/{page.kernel_id}/{verb}")
        assert (status, error["code"]) == (409, "kernel_not_managed"), verb
    assert page.run("print(1)") == "1\n"


@pytest.mark.parametrize(
    "option",
    [
        "--GpuCkptServer.excluded_kernelspecs=py*",
        "--GpuCkptServer.allowed_kernelspecs=other",
        "--GpuCkptServer.use_for_all_kernels=False",
        "--KernelProvisionerFactory.default_provisioner_name=local-provisioner",
    ],
)
def test_the_configuration_keeps_kernels_off_the_engine(server_with, option):
    server = server_with(option)
    page = server.open()
    assert server.kernel(page.kernel_id)["managed"] is False
    assert page.run("print(1)") == "1\n"


def test_without_an_engine_everything_works_but_saving(make_server):
    server = make_server(env={"JUPYTER_GPUCKPT_CRIU": "/no/such/criu"}).start()
    pages = [server.open(f"{name}.ipynb") for name in "ab"]
    assert pages[0].run("print(1)") == "1\n"
    kernel = server.kernel(pages[0].kernel_id)
    assert kernel["managed"] is False
    assert "criu" in kernel["reason"].lower()
    assert kernel["hint"]
    status, error = server.refused("POST", f"kernels/{pages[0].kernel_id}/save")
    assert (status, error["code"]) == (409, "kernel_not_managed")
    assert server.get("api/gpuckpt/host")["engine_available"] is False
    assert server.log_path.read_text().count("cannot be saved:") == 1


def test_a_server_whose_kernel_manager_is_not_supported_shows_and_refuses_kernels(server_with):
    manager = "jupyter_server.services.kernels.kernelmanager.MappingKernelManager"
    server = server_with(
        f"--ServerApp.kernel_manager_class={manager}",
        "--ServerApp.session_manager_class=jupyter_server.services.sessions.sessionmanager.SessionManager",
    )
    page = server.open()
    assert page.run("print(1)") == "1\n"
    listed = server.get("api/gpuckpt/kernels")
    assert [kernel["managed"] for kernel in listed["kernels"]] == [False]
    assert listed["elsewhere"] == []
    for method, path in (
        ("POST", f"kernels/{page.kernel_id}/save"),
        ("POST", f"kernels/{page.kernel_id}/resume"),
        ("POST", "suspend_all"),
        ("GET", "snapshots"),
        ("GET", "shut_down"),
    ):
        status, error = server.refused(method, path)
        assert (status, error["code"]) == (503, "daemon_unavailable"), path
        assert "do not run under jupyter-gpuckpt" in error["message"]
    assert server.get("api/gpuckpt/host")["engine_available"]


def test_a_second_save_is_refused_while_one_is_in_flight(server):
    page = server.open()
    page.run(NOISE + "; data = noise(300_000_000)")
    for _ in range(10):
        operation = server.begin("save", page.kernel_id)
        second = server.request("POST", f"api/gpuckpt/kernels/{page.kernel_id}/save", ok=False)
        shown = server.kernel(page.kernel_id)["operation"]
        assert server.finish(operation)["state"] == "succeeded"
        if second.is_error and shown is not None:
            break
        if second.is_success:  # the first one was over
            server.finish(second.json())
    assert (second.status_code, second.json()["code"]) == (409, "kernel_busy")
    assert shown["operation_id"] == operation["operation_id"]
    assert server.kernel(page.kernel_id)["operation"] is None


def test_a_save_of_a_suspended_kernel_is_refused_and_a_second_suspend_is_not(server):
    page = server.open()
    snapshot = server.do("suspend", page.kernel_id)["result"]["snapshot_id"]
    status, error = server.refused("POST", f"kernels/{page.kernel_id}/save")
    assert (status, error["code"]) == (409, "kernel_state_conflict")
    # The snapshot cannot be deleted either, because the kernel is nowhere else.
    status, error = server.refused("DELETE", f"snapshots/{snapshot}")
    assert (status, error["code"]) == (409, "snapshot_in_use")
    assert server.do("suspend", page.kernel_id)["kind"] == "suspend"
    assert server.do("resume", page.kernel_id)["kind"] == "resume"
    assert page.run("print(1)") == "1\n"


def test_a_resume_from_a_snapshot_that_is_not_there_leaves_the_kernel_suspended(server):
    page = server.open()
    page.run("x = 1")
    server.do("suspend", page.kernel_id)
    operation = server.finish(server.begin("resume", page.kernel_id, snapshot_id="none"))
    assert operation["state"] == "failed"
    assert operation["error"]["code"] == "snapshot_not_found"
    kernel = server.kernel(page.kernel_id)
    assert kernel["state"] == "suspended"
    assert kernel["reason"] == operation["error"]["message"]
    server.do("resume", page.kernel_id)
    assert page.run("print(x)") == "1\n"


def test_a_kernel_that_cannot_be_saved_says_why_and_runs_on(server):
    page = server.open()
    page.run(SANDBOX)
    for verb in ("save", "suspend"):
        operation = server.finish(server.begin(verb, page.kernel_id))
        assert operation["state"] == "failed", verb
        assert operation["error"]["message"]
        kernel = server.kernel(page.kernel_id)
        assert (kernel["state"], kernel["reason"]) == ("running", operation["error"]["message"])
        assert page.run("print(1)") == "1\n"


def test_a_kernel_that_cannot_be_saved_runs_on_when_its_server_stops(server):
    page = server.open()
    page.run(SANDBOX)
    page.run("x = 1")
    server.stop()
    assert "was not suspended" in server.log_path.read_text()
    server.start()
    assert server.kernel(page.kernel_id)["state"] == "running"
    assert server.page(page.kernel_id).run("print(x)") == "1\n"
