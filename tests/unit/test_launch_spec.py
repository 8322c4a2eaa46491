"""The environment of a kernel: what the provisioner adds to it, unless the user has set it."""

from __future__ import annotations

import os

import pytest
from gpuckpt_provisioner.launch_spec import launch_spec

from jupyter_gpuckpt.wire.folder_records import FolderRules
from jupyter_gpuckpt.wire.own_sockets import OwnSockets

NAME = "HWLOC_COMPONENTS"


@pytest.mark.parametrize("own", [None, "", "-gl"])
def test_hwloc_opens_no_gpu_unless_the_user_has_said_what_it_may(tmp_path, own):
    env = {"PATH": os.defpath} | ({} if own is None else {NAME: own})
    found = launch_spec(
        "a kernel",
        ["true"],
        {"env": env, "cwd": str(tmp_path)},
        log_path=tmp_path / "log",
        private_shm=True,
        io_uring=False,
        gpu_copy="driver",
        on_lost_lease="auto",
        keep_files=[],
        working_folder=FolderRules(),
        own_ports=[],
        own_sockets=OwnSockets(),
        jupyter={},
    ).env
    if own is None:
        assert {"-cuda", "-nvml"} < set(found[NAME].split(","))
    else:
        assert found[NAME] == own
