"""host.overcommit: the limits of each mode, from the files that Linux has them in."""

import pytest

from jupyter_gpuckpt.host.overcommit import Overcommit, overcommit

MEMINFO = """MemTotal:       1000 kB
MemFree:         100 kB
SwapTotal:       500 kB
CommitLimit:     900000 kB
Committed_AS:    100000 kB
"""


@pytest.mark.parametrize(
    ("mode", "limits"),
    [
        (0, Overcommit(1500 << 10, None)),
        (1, Overcommit(None, None)),
        (2, Overcommit(None, (800000 << 10) - (128 << 20))),
    ],
)
def test_each_mode_has_its_limit(tmp_path, mode, limits):
    (tmp_path / "sys" / "vm").mkdir(parents=True)
    (tmp_path / "sys/vm/overcommit_memory").write_text(f"{mode}\n")
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert overcommit(tmp_path) == limits


def test_this_machine_has_at_most_one():
    found = overcommit()
    assert found.area_bytes is None or found.free_bytes is None
