"""Kernels whose remote session another machine has taken over: who runs on, and who is suspended."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.daemon.remotes.leases import pauses
from jupyter_gpuckpt.remote.lease_objects import Leases
from jupyter_gpuckpt.remote.remote_list import Remotes
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
from jupyter_gpuckpt.wire.protocol import OwnerKind
from jupyter_gpuckpt.wire.states import KernelState

pytestmark = pytest.mark.usefixtures("credentials")


@pytest.mark.parametrize(
    ("wanted", "of_script", "of_server"),
    [(None, True, False), ("pause", True, True), ("continue", False, False)],
)
def test_who_is_paused(wanted, of_script, of_server):
    chosen = {} if wanted is None else {"on_lost_lease": wanted}
    spec = LaunchSpec("k", ["sleep"], {}, "/", "/log", **chosen)
    owners = {OwnerKind.SCRIPT: of_script, OwnerKind.SERVER: of_server}
    for kind, expected in owners.items():
        assert pauses(SimpleNamespace(spec=spec, owner=SimpleNamespace(kind=kind))) is expected


def test_a_scripts_kernel_is_suspended_and_a_servers_runs_on(
    add, client, owner_of, spec, counts, eventually, uploaded, settings
):
    add()
    opened = remote_keys.opened(settings.data, Remotes(settings.data).get("offsite"))
    sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
    elsewhere = Leases(opened.bucket, opened.key.seal, sessions, "elsewhere", host_name="other")

    def save(kernel):
        return client.wait(client.send(calls.save(kernel.kernel_id)).operation_id).snapshot_id

    with ExitStack() as stack:
        kernels = {}
        for kind in (OwnerKind.SCRIPT, OwnerKind.SERVER):
            owner = stack.enter_context(owner_of(client, kind))
            kernel = kernels[kind] = client.send(calls.launch(owner.owner_id, spec()))
            eventually(lambda kernel=kernel: counts(kernel.kernel_id))
            uploaded(client, save(kernel))
            eventually(lambda kernel=kernel: sessions.get(kernel.kernel_id).lease)
            elsewhere.claim(kernel.kernel_id, take_over=True)
            save(kernel)  # the daemon learns it when it lists this one
        paused, running = kernels[OwnerKind.SCRIPT], kernels[OwnerKind.SERVER]

        def now(kernel):
            return client.send(calls.kernel(kernel.kernel_id))

        eventually(lambda: now(paused).error and now(paused).state is KernelState.SUSPENDED)
        eventually(lambda: now(paused).error)
        assert now(paused).error.code == "session_lost"
        assert f"jupyter gpuckpt resume {paused.kernel_id}" in now(paused).error.command
        before = counts(paused.kernel_id)
        eventually(lambda: now(running).error)
        assert now(running).error.code == "session_lost"
        assert now(running).state is KernelState.RUNNING
        # Whoever resumes it gets the same kernel, in a session of its own.
        assert counts(paused.kernel_id) == before
        client.wait(client.send(calls.resume(paused.kernel_id)).operation_id)
        eventually(lambda: counts(paused.kernel_id) > before)
        assert sessions.get(paused.kernel_id).lease.daemon_id == "elsewhere"
