"""A daemon that is killed with -9 at the end of every stage of every operation, and in the middle of its finer work."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from jupyter_gpuckpt.client import Client, starting
from jupyter_gpuckpt.errors import DaemonUnavailable
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.manifest_records import SCRATCH
from jupyter_gpuckpt.wire.progress import RESUME_STAGES, SAVE_STAGES, SUSPEND_STAGES, Stage
from jupyter_gpuckpt.wire.states import KernelState
from tests.conftest import environment, folder_of_a_daemon, left_in

DYING_DAEMON = Path(__file__).with_name("dying_daemon.py")
STAGES = {"save": SAVE_STAGES, "suspend": SUSPEND_STAGES, "resume": RESUME_STAGES}
#: Tested on a machine with a GPU (tests/gpu).
GPU_STAGES = {stage for stage in Stage if "gpu" in stage}
STEPS = [
    (verb, stage) for verb, stages in STAGES.items() for stage in stages if stage not in GPU_STAGES
]

ENGINE = "jupyter_gpuckpt.engine."
#: Moments within a stage at which something is half done.
MOMENTS = [
    ("save", ENGINE + "tree.standstill.Standstill._stop"),
    ("suspend", ENGINE + "tree.standstill.Standstill._stop"),
    ("save", ENGINE + "criu.hidden_pages.HiddenPages.write"),
    ("suspend", ENGINE + "criu.hidden_pages.HiddenPages.scan"),
    ("save", ENGINE + "memory.ghost.Ghost._make"),
    ("save", ENGINE + "injection.tracee.Tracee._begin"),
    ("save", ENGINE + "injection.tracee.Tracee.syscall"),
    ("suspend", ENGINE + "tcp.record.Recorded._add"),
    ("resume", ENGINE + "tcp.remake.RemadeConnections.finish"),
    ("suspend", "jupyter_gpuckpt.store.staging.Staged.publish"),
    ("resume", ENGINE + "tree.launch.Namespaces.go"),
    ("resume", ENGINE + "memory.filling.Filling.prepare"),
    ("resume", ENGINE + "memory.stopped_pages.StoppedPages.write"),
]
METHODS = tuple(method for _, method in MOMENTS)

#: Holds everything that leaves something behind when a step is forgotten: a deleted file with another link, private shared
#: memory, a child, threads, a connection with something on its way. Its count goes on only when all of them are as they should be.
HOLDER = """
import mmap, os, socket, sys, threading, time
path = sys.argv[1]
listener = socket.create_server(("127.0.0.1", 0))
client, server = socket.create_connection(listener.getsockname()), listener.accept()[0]
client.sendall(bytes(8))
with open(path + ".linked", "w+") as linked:
    linked.write("linked")
    linked.flush()
    os.link(path + ".linked", path + ".other")
    os.unlink(path + ".linked")
    shared = open("/dev/shm/holder", "w+b")
    shared.truncate(4096)
    memory = mmap.mmap(shared.fileno(), 4096)
    memory[:4] = b"held"
    child = os.fork()
    if not child:
        while True:
            time.sleep(0.01)
    ticks = []
    threading.Thread(target=lambda: [time.sleep(0.01) or ticks.append(1) for _ in iter(int, 1)], daemon=True).start()
    private = bytearray(os.urandom(4 << 20))
    whole = hash(bytes(private))
    count = 0
    while True:
        assert os.pread(linked.fileno(), 6, 0) == b"linked"
        assert memory[:4] == b"held" and os.waitpid(child, os.WNOHANG) == (0, 0)
        assert hash(bytes(private)) == whole
        assert int.from_bytes(server.recv(8), "big") == count
        before = len(ticks)
        count += 1
        client.sendall(count.to_bytes(8, "big"))
        with open(path, "w") as file:
            file.write(str(count))
        while len(ticks) < before + 3:
            time.sleep(0.01)
"""


class Dying:
    """A daemon that dies at most once, where `at` says. `program`: `dying_daemon.py`, or one that calls it. `env`: more variables."""

    def __init__(
        self,
        settings,
        words,
        eventually,
        methods=METHODS,
        program=DYING_DAEMON,
        env=MappingProxyType({}),
    ):
        self._words, self._hold = words, words.with_name("hold")
        self._log = settings.log_file
        wanted = starting.target(settings, start=True)
        self._process = subprocess.Popen(
            [sys.executable, program, "--settings", msgspec.json.encode(settings).decode()],
            env={
                **os.environ,
                "DIE_AT": str(words),
                "HOLD": str(self._hold),
                "DYING_METHODS": ",".join(methods),
                **env,
            },
            start_new_session=True,
        )
        eventually(lambda: starting._ask(wanted) is not None)

    def at(self, name):
        self._words.write_text(name)

    def hold(self):
        """Make operations wait at every place where the daemon could die."""
        self._hold.touch()

    def hold_no_more(self):
        """Let operations pass all later places."""
        self._hold.unlink()

    def held(self):
        """Return the place at which an operation waits; empty if none waits."""
        path = self._hold.with_name("hold.held")
        return path.read_text() if path.exists() else ""

    def go_on(self):
        """Let the operation that waits go on to the next place."""
        self._hold.with_name("hold.held").unlink()

    @property
    def pid(self):
        return self._process.pid

    def wait(self):
        assert self._process.wait(180) == -signal.SIGKILL, self._log.read_text()[-3000:]
        self._words.unlink()

    def end(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture
def dying(settings, short_dir, eventually):
    made = Dying(settings, short_dir / "die-at", eventually)
    yield made
    made.end()


class World:
    """A kernel with state of all kinds and its daemon, for all tests of the module; it is replaced after a test that failed.

    `env`: more variables for its daemons.
    """

    def __init__(self, criu, env=MappingProxyType({})):
        self._criu, self._stack, self._env = criu, ExitStack(), env
        #: None until there is one.
        self.dying = self.kernel_id = None
        #: False from the beginning of a test until it has found everything as it should be.
        self.is_unharmed = False

    def renew(self):
        self.end()
        self.dying = self.kernel_id = None
        self.folder = self._stack.enter_context(folder_of_a_daemon())
        self.env = environment(self._criu, self.folder)

    def start(self, settings, eventually):
        """Start the next daemon."""
        self.dying = Dying(settings, self.folder / "die-at", eventually, env=self._env)

    def end(self):
        if self.dying is not None:
            self.dying.end()
        self._stack.close()


@pytest.fixture(scope="module")
def world(criu):
    made = World(criu)
    yield made
    made.end()


@pytest.fixture
def short_dir(world):
    if not world.is_unharmed:
        world.renew()
    world.is_unharmed = False
    return world.folder


@pytest.fixture
def daemon_env(world, short_dir):
    return world.env


@pytest.fixture
def holder(world, settings, owner_of, spec, short_dir, counts, eventually):
    """Return a kernel that holds everything, under the dying daemon."""
    if world.kernel_id is None:
        world.start(settings, eventually)
        with Client.connect(settings) as client, owner_of(client) as owner:
            made = spec()
            made.argv[:] = [sys.executable, "-c", HOLDER, str(short_dir / made.kernel_id)]
            world.kernel_id = client.send(calls.launch(owner.owner_id, made)).kernel_id
            eventually(lambda: counts(made.kernel_id))
    with Client.connect(settings) as client:
        return client.send(calls.kernel(world.kernel_id))


def inits(short_dir):
    """Those that were started for this test."""
    found = [pid for pid in processes.every() if processes.name(pid) == "gpuckpt-init"]
    mark = str(short_dir)  # those of other tests may end meanwhile
    return [pid for pid in found if any(mark in word for word in processes.arguments(pid))]


def files_left(short_dir, init_pid):
    """Return left-over files outside of the kernel's scratch: in the spill directory and beside the kernel's own files."""
    spilled = set().union(*map(left_in, (short_dir / "data").glob("spill/*")))
    links = {path.name for path in short_dir.glob("link_remap*")}
    shared = {path.name for path in Path(f"/proc/{init_pid}/root/dev/shm").iterdir()}
    shared -= {"holder", Path(SCRATCH).name}
    return spilled | links | shared


def check(client, kernel, short_dir, counts, eventually, left_in_scratch):
    """Check that the kernel runs unharmed and that nothing is left over."""
    said = (short_dir / f"{kernel.kernel_id}.log").read_text()
    assert not said, said
    now = client.send(calls.kernel(kernel.kernel_id))
    assert now.state is KernelState.RUNNING
    before = counts(kernel.kernel_id)
    eventually(lambda: counts(kernel.kernel_id) > before + 2)
    tree = [processes.parent(now.pid), now.pid, *processes.descendants(now.pid)]
    assert len(tree) == 3
    eventually(lambda: processes.children(tree[0]) == [now.pid])  # no ghost
    assert not [pid for pid in tree if processes.state(pid) in ("T", "t", "Z")]
    assert not any("CRIU" in area.path for pid in tree for area in processes.maps(pid))
    assert left_in_scratch(now.init_pid) | files_left(short_dir, now.init_pid) == set()
    daemon = client.send(calls.handshake()).pid
    assert inits(short_dir) == [now.init_pid]
    assert [pid for pid in processes.children(daemon) if processes.state(pid) == "Z"] == []


@pytest.mark.parametrize(
    ("verb", "at"), [*STEPS, *MOMENTS], ids=lambda word: word.rpartition(".")[2]
)
def test_a_daemon_killed_at_any_step_costs_nothing(survives, verb, at):
    survives(verb, at)


@pytest.fixture
def survives(world, holder, settings, short_dir, counts, eventually, left_in_scratch):
    """Return a function that kills the daemon at one place, and checks that the next one finds everything as it should be."""

    def check_all(verb, at):
        kernel_id = holder.kernel_id
        with Client.connect(settings) as client:
            if verb == "resume":
                client.wait(client.send(calls.suspend(kernel_id)).operation_id)
                snapshot = client.send(calls.kernel(kernel_id)).snapshot_id
            world.dying.at(str(at))
            with suppress(DaemonUnavailable):  # it may be dead before it has answered
                client.send(getattr(calls, verb)(kernel_id))
            world.dying.wait()
        world.start(settings, eventually)
        with Client.connect(settings) as client:
            found = client.send(calls.kernel(kernel_id))
            if verb == "resume":
                assert (found.state, found.snapshot_id) == (KernelState.SUSPENDED, snapshot)
            committed = at in (Stage.COMMIT, Stage.STOP) or str(at).endswith("publish")
            if verb == "suspend":
                assert found.state is (KernelState.SUSPENDED if committed else KernelState.RUNNING)
            if verb == "save":
                assert (found.state, found.pid) == (KernelState.RUNNING, holder.pid)
                assert bool(client.send(calls.snapshots(kernel_id))) == committed
            if found.state is KernelState.SUSPENDED:
                assert inits(short_dir) == []
                assert list(short_dir.glob("link_remap*")) == []
                client.wait(client.send(calls.resume(kernel_id)).operation_id)
            check(client, holder, short_dir, counts, eventually, left_in_scratch)
            client.wait(client.send(calls.suspend(kernel_id)).operation_id)
            client.wait(client.send(calls.resume(kernel_id)).operation_id)
            check(client, holder, short_dir, counts, eventually, left_in_scratch)
            forget_snapshots(client)
        world.is_unharmed = True

    return check_all


def forget_snapshots(client):
    """Delete all snapshots, so that the next save has no predecessor."""
    for snapshot in client.send(calls.snapshots()):
        client.send(calls.delete_snapshot(snapshot.snapshot_id))


def test_the_stages_are_those_that_operations_go_through(world, holder, settings):
    """So a new stage is killed at, too, or fails here."""
    of_remotes = {
        Stage.FETCH,
        Stage.UPLOAD,
        Stage.RELEASE,
    }  # tests/remote and test_uploads.py kill the daemon in these
    of_kernels = set(Stage) - of_remotes
    assert of_kernels == {stage for stages in STAGES.values() for stage in stages}
    with Client.connect(settings) as client:
        for verb, stages in STAGES.items():
            result = client.wait(client.send(getattr(calls, verb)(holder.kernel_id)).operation_id)
            assert set(result.seconds_by_stage) == set(stages) - GPU_STAGES
        forget_snapshots(client)
    world.is_unharmed = True
