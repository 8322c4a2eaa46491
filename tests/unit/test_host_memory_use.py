"""host.memory_use and the decision that memory is short: groups of version 2 as files, this machine as it is."""

import pytest

from jupyter_gpuckpt.host.memory_use import memory_uses
from jupyter_gpuckpt.server.policies.memory_room import shortage
from jupyter_gpuckpt.wire.protocol import MemoryUse

MB = 1 << 20
STALLED = (
    "some avg10=40.00 avg60=3.10 avg300=0.70 total=812\nfull avg10=12.50 avg60=1 avg300=0 total=9\n"
)


@pytest.fixture
def membership(tmp_path):
    path = tmp_path / "cgroup"
    path.write_text("0::/outer/inner\n")
    return path


@pytest.fixture
def inner(tmp_path):
    folder = tmp_path / "fs" / "outer" / "inner"
    folder.mkdir(parents=True)
    (folder / "memory.current").write_text("900\n")
    (folder / "memory.stat").write_text("anon 800\ninactive_file 50\n")
    return folder


def test_the_machine_comes_first_and_has_no_more_free_than_it_has(tmp_path, membership):
    [machine] = memory_uses(tmp_path / "fs", membership)
    assert machine.name == "This machine"
    assert 0 < machine.free_bytes < machine.total_bytes
    assert machine.stalled_percent >= 0


def test_groups_of_version_2_are_throttled_before_their_limit(tmp_path, membership, inner):
    (inner / "memory.max").write_text("2000\n")
    (inner / "memory.high").write_text("1000\n")
    (inner / "memory.pressure").write_text(STALLED)
    (inner.parent / "memory.max").write_text("max\n")
    (inner.parent / "memory.current").write_text("5000\n")
    _, limit, throttled = memory_uses(tmp_path / "fs", membership)
    name = f"The control group {inner}"
    assert limit == MemoryUse(name, 2000, 1150, 12.5)
    assert throttled == MemoryUse(name, 1000, 150, 12.5)


@pytest.mark.parametrize("text", ["", "some avg10=1.0\n", "full\n"])
def test_a_kernel_without_pressure_information_is_no_error(tmp_path, membership, inner, text):
    (inner / "memory.max").write_text("2000\n")
    (inner / "memory.pressure").write_text(text)
    assert memory_uses(tmp_path / "fs", membership)[1].stalled_percent == 0


@pytest.mark.parametrize(
    ("total", "free", "stalled", "is_short"),
    [
        (10_000 * MB, 1001 * MB, 0.0, False),
        (10_000 * MB, 999 * MB, 0.0, True),
        # A suspend needs some room, below a small limit as well.
        (1000 * MB, 249 * MB, 0.0, True),
        (1000 * MB, 251 * MB, 0.0, False),
        # Processes wait for memory already.
        (10_000 * MB, 1999 * MB, 12.0, True),
        (10_000 * MB, 2001 * MB, 12.0, False),
    ],
)
def test_memory_is_short_from_the_configured_share_on(total, free, stalled, is_short):
    assert bool(shortage(MemoryUse("It", total, free, stalled), 0.9)) == is_short
