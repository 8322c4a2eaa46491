"""What would be lost of a kernel with this machine, as `ps` says it."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.cli.actions import AtRisk, at_risk
from jupyter_gpuckpt.wire.protocol import Kernel
from jupyter_gpuckpt.wire.snapshot_records import Snapshot, Upload, UploadState
from jupyter_gpuckpt.wire.states import KernelState
from tests.cli.test_remote_sessions import joined
from tests.conftest import wait_for

NOW = 10_000.0


def saved(age, *states, kernel_id="k"):
    """Return a snapshot of that age, with uploads in these states."""
    uploads = [Upload("offsite", one, 0, 0) for one in states]
    info = {"snapshot_id": f"s{age}", "kernel_id": kernel_id, "created": NOW - age}
    return Snapshot(**info, reason="save", uploads=uploads)


@pytest.mark.parametrize(
    ("kernel", "snapshots", "expected"),
    [
        ({}, [], AtRisk(None)),
        ({}, [saved(5, UploadState.UPLOADED, kernel_id="other")], AtRisk(None)),
        ({}, [saved(120, UploadState.UPLOADED)], AtRisk(120.0)),
        ({"state": KernelState.SUSPENDED}, [saved(120, UploadState.UPLOADED)], AtRisk(0.0)),
        (
            {"state": KernelState.SUSPENDED},
            [saved(20, UploadState.WAITING), saved(120, UploadState.UPLOADED)],
            AtRisk(100.0),
        ),
        # A server that saves it sees whether it has changed.
        ({"autosave_seconds": 60.0}, [saved(900, UploadState.UPLOADED)], AtRisk(0.0)),
        (
            {"autosave_seconds": 60.0, "changed_at": NOW - 30},
            [saved(900, UploadState.UPLOADED)],
            AtRisk(30.0),
        ),
        (
            {"autosave_seconds": 60.0, "changed_at": NOW - 5},
            [saved(10, UploadState.FAILED), saved(151, UploadState.UPLOADED)],
            AtRisk(151.0, is_late=True),
        ),
        (
            {"autosave_seconds": 60.0, "changed_at": NOW - 5},
            [saved(10, UploadState.UPLOADING), saved(149, UploadState.UPLOADED)],
            AtRisk(149.0),
        ),
        ({"autosave_seconds": 60.0, "changed_at": NOW - 151}, [], AtRisk(None, is_late=True)),
        ({"autosave_seconds": 60.0, "changed_at": NOW - 149}, [], AtRisk(None)),
    ],
)
def test_what_would_be_lost(kernel, snapshots, expected):
    found = Kernel("k", kernel.pop("state", KernelState.RUNNING), "owner", **kernel)
    assert at_risk(found, snapshots, NOW) == expected


def test_what_would_be_lost_is_written_down():
    assert list(map(str, (AtRisk(None), AtRisk(0.0), AtRisk(125.0)))) == [
        "all",
        "nothing",
        "2 min 05 s",
    ]


def test_kernels_are_listed_with_what_would_be_lost(
    kernel, gpuckpt, gpuckpt_json, daemon_env, short_dir
):
    kernel.worth("globals().update(x=41)")
    assert "AT RISK" not in gpuckpt("ps").stdout
    joined(daemon_env, "share", f"file://{short_dir}/share")
    heads, row = gpuckpt("ps").stdout.splitlines()
    assert heads.endswith("AT RISK")
    assert row.split()[-1] == "all"
    gpuckpt("suspend", kernel.id)
    wait_for(lambda: gpuckpt("ps").stdout.splitlines()[1].split()[-1] == "nothing")
    assert gpuckpt_json("ps")["at_risk"] == {kernel.id: {"seconds": 0.0, "is_late": False}}
