"""The package is replaced by another version while a kernel runs: the commands say what to do, and nothing is lost."""

from importlib.metadata import distribution

import pytest

from tests.conftest import wait_for


@pytest.fixture
def install(daemon_env, tmp_path):
    """Return a function that replaces the installed version, as far as programs that begin from now on see it."""
    daemon_env["PYTHONPATH"] = str(tmp_path)
    daemon_env["JUPYTER_GPUCKPT_IDLE_EXIT"] = "0.2"
    metadata = tmp_path / "jupyter_gpuckpt-0.dist-info/METADATA"
    metadata.parent.mkdir()
    entry_points = distribution("jupyter_gpuckpt").read_text("entry_points.txt")
    (metadata.parent / "entry_points.txt").write_text(entry_points)

    def installed(version):
        metadata.write_text(f"Metadata-Version: 2.1\nName: jupyter_gpuckpt\nVersion: {version}\n")

    installed("7.1")
    return installed


@pytest.fixture
def gpuckpt(gpuckpt_program):
    """Run the command of the version that is installed."""
    return gpuckpt_program


def test_an_upgrade_beside_a_kernel_that_runs(install, kernel, gpuckpt, gpuckpt_json):
    kernel.worth("globals().update(x=41)")
    install("7.2")
    refused = gpuckpt("ps", status=7).stderr
    assert "version 7.1, protocol" in refused
    assert "here: version 7.2" in refused
    assert "Nothing is lost." in refused
    assert "jupyter gpuckpt suspend --all" in refused
    # What was started before goes on.
    assert kernel.worth("x + 1") == "42"
    report = gpuckpt_json("suspend", "--all")
    assert [one["kernel_id"] for one in report["kernels"]] == [kernel.id]
    kernel.kill()
    # The former daemon leaves, and the next one has the snapshot.
    wait_for(lambda: "another version" not in gpuckpt_or_not(gpuckpt))
    [snapshot] = gpuckpt_json("list")["snapshots"]
    assert snapshot["kernel_id"] == kernel.id


def gpuckpt_or_not(gpuckpt):
    """Return what `ps` says on stderr, whatever its status."""
    try:
        return gpuckpt("ps", status=7).stderr
    except AssertionError:
        return ""
