"""Kernels are saved before the cells of agents, and only before these."""

import asyncio

import pytest

from tests.tools.scripted_agent import agent


@pytest.fixture
def server(make_server, daemon_env, monkeypatch):
    for name, value in daemon_env.items():
        monkeypatch.setenv(name, value)
    return make_server(
        "--GpuCkptServer.save_before_agents=True",
        "--GpuCkptServer.agent_clients=agent-*",
        "--GpuCkptServer.agent_clients=Some Agent/*",
    ).start()


def saved(server):
    """Return the causes of all snapshots, newest first."""
    return [one["cause"] for one in server.get("api/gpuckpt/snapshots")["snapshots"]]


@pytest.mark.slow
def test_a_changed_kernel_is_saved_before_each_cell_of_an_agent(server, eventually):
    page = server.open("work.ipynb")
    page.run("x = 1")
    page.run("x = 2")
    assert saved(server) == []  # a person's cells
    by_name = server.page(page.kernel_id, username="agent-7")
    by_program = server.page(page.kernel_id, program="Some Agent/1.0")
    other = server.page(page.kernel_id, username="somebody", program="Browser/1.0")
    by_name.run("x = 3")
    eventually(lambda: saved(server) == ["tool"])
    other.run("x += 1")
    assert saved(server) == ["tool"]
    by_program.run("x = 5")
    eventually(lambda: saved(server) == ["tool"] * 2)

    async def work():
        async with agent(server.env) as connected:
            ran = await connected.call("run_in", session="work.ipynb", code="x += 1; print(x)")
            await asyncio.to_thread(eventually, lambda: len(saved(server)) == 3)
            listed = (await connected.call("list_snapshots"))["snapshots"]
            await connected.call("restore", snapshot=listed[0]["snapshot"])
            again = await connected.call("run_in", session="work.ipynb", code="print(x)")
            return ran["output"], again["output"]

    # The cell is taken back.
    assert asyncio.run(work()) == ("6\n", "5\n")
    assert set(saved(server)) == {"tool"}


def test_a_cell_runs_although_its_kernel_cannot_be_saved(server):
    page = server.open("work.ipynb")
    page.run("import ctypes; linux = ctypes.CDLL(None, use_errno=True)")
    # System V shared memory cannot be saved.
    page.run("number = linux.shmget(0, 4096, 0o1600); linux.shmat.restype = ctypes.c_void_p")
    page.run("at = linux.shmat(number, None, 0); _ = linux.shmctl(number, 0, None)")
    by_agent = server.page(page.kernel_id, username="agent-7")
    assert by_agent.run("print('ran')") == "ran\n"
    assert "was not saved before a cell of an agent" in server.log()
