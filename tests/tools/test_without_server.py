"""The tools and `Sessions` with a kernel that a script started: no Jupyter server has it."""

import asyncio
import subprocess
import sys

import pytest

from jupyter_gpuckpt.errors import ConfigurationError, KernelNotFound, SnapshotNotFound
from jupyter_gpuckpt.sessions import Sessions, ToolSessions
from jupyter_gpuckpt.wire.manifest_records import Cause
from tests.conftest import wait_for
from tests.tools.scripted_agent import ToolFailed, agent

SCRIPT = """
import sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(startup_timeout=180)
print(manager.kernel_id, flush=True)
sys.stdin.read()
manager.shutdown_kernel(now=True)
"""


@pytest.fixture
def env(module_daemon_env, monkeypatch):
    found = module_daemon_env | {"JUPYTER_DEFAULT_PROVISIONER_NAME": "gpuckpt-provisioner"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def kernel_id(env):
    """Return the id of a kernel of a script, which ends after the test."""
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield script.stdout.readline().strip()
    script.communicate()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_agent_tries_and_keeps_a_branch_without_a_server(env, kernel_id):
    async def work():
        async with agent(env) as connected:
            call = connected.call
            await call("run_in", session=kernel_id, code="x = 1")
            tried = await call(
                "try_each", state=kernel_id, codes=["x += 1", "x += 2; print(x)", "y"]
            )
            statuses = [one["status"] for one in tried["tries"]]
            assert statuses == ["ok", "ok", "error"]
            # A branch has a history session of its own: IPython prints an error line otherwise.
            assert [one["output"] for one in tried["tries"][:2]] == ["", "3\n"]
            second = tried["tries"][1]["session"]
            code = "print(get_ipython().history_manager.session_number)"
            numbers = {
                (await call("run_in", session=one, code=code))["output"]
                for one in (kernel_id, tried["tries"][0]["session"], second)
            }
            assert len(numbers) == 3
            kept = await call("keep_branch", branch=second)
            assert (await call("run_in", session=kernel_id, code="x"))["output"] == "3\n"
            await call("restore", snapshot=kept["saved_before"])
            assert (await call("run_in", session=kernel_id, code="x"))["output"] == "1\n"
            await call("end_branch", branch=tried["tries"][0]["session"])
            with pytest.raises(ToolFailed, match="not a branch that a tool made"):
                await call("end_branch", branch=kernel_id)
            return await call("list_sessions"), await call("list_snapshots", session=kernel_id)

    sessions, snapshots = asyncio.run(work())
    assert [one["session"] for one in sessions["sessions"]] == [kernel_id]
    assert {one["cause"] for one in snapshots["snapshots"]} == {"tool"}
    with Sessions() as sessions:
        assert not any(one.pinned for one in sessions.snapshots(kernel_id))


@pytest.mark.slow
def test_scripts_run_code_compare_and_end_and_delete(env, kernel_id):
    told = []
    with Sessions() as sessions:
        assert sessions.run(kernel_id, "x = 5; print(x)").shown()["output"] == "5\n"
        saved = sessions.save(kernel_id, progress=told.append)
        assert told[-1].is_over
        assert any(one.progress.stage for one in told)
        assert sessions.run(kernel_id, "1/0").status == "error"
        found = sessions.run(kernel_id, "while True: pass", seconds=1)
        assert found.status == "timed out"
        branch = sessions.branch(saved.snapshot_id)
        kernels = kernel_id, branch.kernel.kernel_id
        assert sessions.run(kernels[1], "x = 6").status == "ok"
        changed = sessions.compare(*kernels).changed
        assert [one.name for one in changed] == ["x"]
        # It is no branch that a tool made.
        with pytest.raises(ConfigurationError):
            sessions.keep_branch(kernels[1], kernel_id)
        sessions.end(kernels[1])
        with pytest.raises(KernelNotFound):
            sessions.run(kernels[1], "x")
        sessions.delete(saved.snapshot_id)
        assert not sessions.snapshots(kernel_id)
        with pytest.raises(SnapshotNotFound):
            sessions.delete(saved.snapshot_id)


@pytest.mark.slow
def test_an_operation_is_canceled_by_an_error_of_its_progress(env, kernel_id):
    class NoMore(Exception):  # noqa: N818 - it is no error
        pass

    def stop(operation):
        raise NoMore

    with Sessions() as sessions:
        sessions.run(kernel_id, "held = bytearray(200_000_000)")
        with pytest.raises(NoMore):
            sessions.save(kernel_id, progress=stop)
        wait_for(lambda: sessions.list()[0].state == "running")
        assert sessions.run(kernel_id, "print(len(held))").shown()["output"] == "200000000\n"


@pytest.mark.slow
def test_what_tools_save_without_a_server_is_theirs_to_thin(env, kernel_id, monkeypatch):
    monkeypatch.setattr("jupyter_gpuckpt.sessions.KEPT_TOOL_SAVES", 2)
    with Sessions() as by_user:
        by_hand = by_user.save(kernel_id)
    with ToolSessions() as sessions:
        for _ in range(4):
            last = sessions.save(kernel_id)
        wait_for(lambda: len(sessions.snapshots(kernel_id)) == 3)
        found = sessions.snapshots(kernel_id)
    assert [one.cause for one in found] == [Cause.TOOL, Cause.TOOL, Cause.MANUAL]
    assert found[0].snapshot_id == last.snapshot_id
    assert found[2].snapshot_id == by_hand.snapshot_id
