"""Memory that is short in a real control group: idle kernels are suspended until enough is free, and cells bring them back."""

import socket

import pytest

from tests.memory_groups import memory_group
from tests.server.test_ended_operations import metrics

MB = 1 << 20


@pytest.fixture
def group():
    # `make_server`, asked for after this one, has ended the group's processes at its end.
    with memory_group() as made:
        yield made


@pytest.fixture
def server(group, make_server):
    made = make_server("--GpuCkptServer.ram_high=0.7")
    made.prefix = group.enter()
    return made.start()


def states(server, *pages):
    return [server.kernel(page.kernel_id)["state"] for page in pages]


def test_the_least_recently_used_idle_kernel_is_suspended_if_memory_is_short(
    group, server, eventually
):
    busy, older, newer = (server.open(f"{name}.ipynb") for name in ("busy", "older", "newer"))
    cell = busy.execute("import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)")
    for page in (older, newer):
        page.run("x = b'0123456789abcdef' * (20 << 20)")
    assert states(server, busy, older, newer) == ["running"] * 3
    # A suspend needs some of it, and less would be free than is kept free.
    group.limit(group.used() + 180 * MB)
    eventually(lambda: states(server, older) == ["suspended"])
    assert states(server, busy, newer) == ["running"] * 2
    view = server.kernel(older.kernel_id)
    assert view["suspend_cause"] == "memory"
    [snapshot] = server.get(f"api/gpuckpt/snapshots?kernel_id={older.kernel_id}")["snapshots"]
    assert snapshot["cause"] == "memory"
    assert f"The control group {group.folder} is short of memory" in server.log()
    assert metrics(server)['gpuckpt_suspends_total{cause="memory"}'] == 1
    (server.root / "go").touch()
    busy.reply(cell)
    group.limit(2000 * MB)
    assert older.run("print(len(x))") == f"{320 * MB}\n"
    assert server.kernel(older.kernel_id)["suspend_cause"] is None
    assert states(server, busy, newer) == ["running"] * 2
    assert group.kills() == 0


@pytest.mark.slow
def test_a_kernel_that_cannot_be_suspended_runs_on_and_another_one_is(group, server, eventually):
    older, newer = (server.open(f"{name}.ipynb") for name in ("older", "newer"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        older.run(f"import socket; client = socket.create_connection({listener.getsockname()})")
        newer.run("x = b'0123456789abcdef' * (30 << 20)")
        group.limit(group.used() + 180 * MB)
        eventually(lambda: states(server, newer) == ["suspended"])
        assert states(server, older) == ["running"]
        assert f"Idle kernel {older.kernel_id} runs on: " in server.log()


@pytest.mark.slow  # tests/unit makes room for a resume in every run
def test_a_kernel_that_is_resumed_gets_the_memory_of_idle_ones(group, server, eventually):
    first, second = (server.open(f"{name}.ipynb") for name in ("first", "second"))
    for page in (first, second):
        page.run("x = b'0123456789abcdef' * (20 << 20)")
    server.do("suspend", first.kernel_id)
    # Enough for what runs, not for both.
    group.limit(group.used() + 250 * MB)
    assert first.run("print(len(x))") == f"{320 * MB}\n"
    assert states(server, first, second) == ["running", "suspended"]
    assert second.run("print(len(x))") == f"{320 * MB}\n"
    assert states(server, first, second) == ["suspended", "running"]
    assert group.kills() == 0
