"""One home directory on several machines: kernels go from one to another, and never run on two.

A machine here is a set of namespaces with a host name, a boot id, processes and a runtime directory of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.daemon.kernels.record_leases import RecordLeases
from jupyter_gpuckpt.wire import calls, place
from jupyter_gpuckpt.wire.states import KernelState
from tests.conftest import PATIENCE
from tests.daemon.conftest import COUNTER
from tests.server.test_another_machine import BOOT, NAMESPACES


class Machine:
    """A machine with a client, whose daemon lives as long as the machine."""

    def __init__(self, name, env, root):
        self._process = subprocess.Popen(
            [
                *("unshare", *NAMESPACES, "sh", "-c", BOOT, "sh"),
                *(name, env["JUPYTER_GPUCKPT_RUNTIME_DIR"], "--"),
                *(sys.executable, "-m", "tests.daemon.home_client", str(root)),
            ],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def do(self, *words):
        """Let the client do something; return what it says."""
        print(*words, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def end(self):
        """Switch it off."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def machine(daemon_env, short_dir):
    """Return a function that boots machines with one home."""
    if os.geteuid() or subprocess.run(["unshare", *NAMESPACES, "true"], check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    Path(daemon_env["JUPYTER_GPUCKPT_RUNTIME_DIR"]).mkdir()
    (short_dir / "counter.py").write_text(COUNTER)
    booted = []

    def boot(name):
        booted.append(Machine(name, daemon_env, short_dir))
        return booted[-1]

    yield boot
    for one in booted:
        one.end()


def launch(machine, short_dir, kernel_id="k"):
    argv = (sys.executable, short_dir / "counter.py", short_dir / kernel_id)
    assert machine.do("launch", kernel_id, *argv) == "running"


@pytest.mark.parametrize("moves", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_a_kernel_moves_between_machines_and_loses_nothing(
    machine, short_dir, counts, eventually, moves
):
    here, there = machine("first"), machine("second")
    launch(here, short_dir)
    saved, counted = [], 0
    for _ in range(moves):
        eventually(lambda least=counted: counts("k") > least)
        # While it runs it is left alone, whoever asks.
        refused = there.do("resume", "k")
        assert refused["error"] == "session_held", refused
        saved.append(here.do("suspend", "k"))
        before = counts("k")
        assert there.do("resume", "k") == saved[-1]
        eventually(lambda least=before: counts("k") >= least)
        counted = counts("k")
        assert here.do("resume", "k")["error"] == "session_held"
        assert here.do("kernels") == {}
        here, there = there, here
    # Everything that was saved is on the machine where the kernel is, in a store of its own.
    assert set(here.do("snapshots")) == set(saved)
    assert {path.name for path in (short_dir / "data").glob("store*")} == {"store", "store-2"}


def notes_of(host, short_dir):
    """Return the file with the notes of a machine about notebooks that others have taken over."""
    name = hashlib.blake2b(host.encode(), digest_size=8).hexdigest()
    return short_dir / "data/state" / f"lost-notebooks.{name}.json"


def test_a_machine_that_gets_a_kernel_no_longer_says_that_another_has_it_unless_a_third_one_has(
    machine, short_dir, counts, eventually
):
    notes = notes_of("first", short_dir)
    notes.parent.mkdir(parents=True)
    notes.write_text('{"k": "Taken over by second.", "other": "Taken over by third."}')
    notes_of("second", short_dir).write_text('{"offsite": "Taken over by third."}')
    here, there = machine("first"), machine("second")
    for kernel_id in ("k", "offsite"):
        launch(there, short_dir, kernel_id)
        eventually(lambda kernel_id=kernel_id: counts(kernel_id))
        there.do("suspend", kernel_id)
        here.do("resume", kernel_id)
    told = "Taken over by third."
    assert json.loads(notes.read_text()) == {"other": told, "offsite": told}


def test_what_a_machine_leaves_is_found_by_the_next(machine, short_dir, counts, eventually):
    here, there = machine("first"), machine("second")
    assert there.do("snapshots") == []
    launch(here, short_dir)
    eventually(lambda: counts("k"))
    saved = here.do("suspend", "k")
    # Another server takes only what the first one has let go.
    assert there.do("claim") == []
    here.do("leave")
    assert there.do("claim") == ["k"]
    assert there.do("resume", "k") == saved
    again = there.do("suspend", "k")
    there.do("leave")
    there.end()
    here.end()
    third = machine("third")
    assert third.do("claim") == ["k"]
    assert third.do("resume", "k") == again
    # The store of the second machine was taken in.
    eventually(lambda: set(third.do("snapshots")) == {saved, again})
    eventually(lambda: not (short_dir / "data/store-2").exists())


def test_a_user_learns_that_another_machine_has_taken_over_a_kernel_that_still_runs(
    client, kernel, settings, counts, eventually
):
    this_place = place.this_place(settings.data)
    elsewhere = msgspec.structs.replace(this_place, namespaces=[1, *this_place.namespaces[1:]])
    # To the other daemon this one has ended: so it gets the kernel's lease at once.
    RecordLeases(settings.state, elsewhere).take(kernel.kernel_id, {this_place.key})
    saved = client.wait(client.send(calls.save(kernel.kernel_id)).operation_id)
    eventually(lambda: client.send(calls.kernel(kernel.kernel_id)).error)
    told = client.send(calls.kernel(kernel.kernel_id))
    assert told.error.code == "session_lost"
    assert (told.state, told.snapshot_id) == (KernelState.RUNNING, saved.snapshot_id)
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before)
