"""What kernels use is told to their owner by itself; how long a resume may take is known from earlier ones."""

import sys
import time

import msgspec
import pytest

from jupyter_gpuckpt.daemon.kernels.resume_times import ResumeTimes
from jupyter_gpuckpt.daemon.kernels.usage import Usage, differ
from jupyter_gpuckpt.host import processes
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.manifest_records import Host, LaunchSpec, Manifest, Sizes, SnapshotInfo
from jupyter_gpuckpt.wire.progress import Progress, Stage
from jupyter_gpuckpt.wire.states import KernelState

MB = 1_000_000

#: Takes so many megabytes as a file says, again and again; says how many it has in another.
GROWING = """
import sys, time
held = []
open(sys.argv[1] + ".ready", "w").close()
while True:
    try:
        wanted = int(open(sys.argv[1] + ".wanted").read() or 0)
    except FileNotFoundError:
        wanted = 0
    while len(held) < wanted:
        held.append(b"x" * 1_000_000)
    time.sleep(0.02)
"""


@pytest.fixture
def settings(settings):
    """As every test's, but large ones have worker processes."""
    return msgspec.structs.replace(settings, threads=2)


@pytest.fixture
def growing(client, owner, spec, short_dir):
    """Return a function that launches a kernel; it returns the kernel's id and a setter of its megabytes."""

    def launch(name):
        argv = [sys.executable, "-c", GROWING, str(short_dir / name)]
        kernel = client.send(calls.launch(owner.owner_id, spec(argv)))
        return kernel.kernel_id, lambda count: (short_dir / f"{name}.wanted").write_text(str(count))

    return launch


@pytest.fixture
def told(events):
    """Return the sizes of a kernel's memory that its owner received, in bytes, oldest first."""

    def read(kernel_id):
        kernels = [event.kernel for event in list(events) if event.kernel]
        return [kernel.memory_bytes for kernel in kernels if kernel.kernel_id == kernel_id]

    return read


def test_an_owner_hears_what_changed_and_nothing_of_what_did_not(
    client, growing, told, short_dir, eventually
):
    def memory(kernel_id):
        return client.send(calls.kernel(kernel_id)).memory_bytes

    grows, take = growing("grows")
    rests, _ = growing("rests")
    eventually((short_dir / "rests.ready").exists)
    uses = memory(rests)
    eventually(lambda: told(rests) and not differ(told(rests)[-1], uses))
    heard = len(told(rests))
    for megabytes in (50, 100, 150):
        take(megabytes)
        eventually(lambda megabytes=megabytes: memory(grows) > megabytes * MB)
        # A size from shortly before the end of the growth need not be followed by another one.
        eventually(lambda: told(grows) and not differ(told(grows)[-1], memory(grows)))
    # It was measured as often.
    assert len(told(rests)) == heard


def test_who_asks_gets_what_is_used_at_that_moment(client, growing, told, eventually):
    kernel_id, take = growing("asked")
    eventually(lambda: max(told(kernel_id)[-1:], default=0) > 3 * MB)
    take(40)
    eventually(lambda: client.send(calls.kernel(kernel_id)).memory_bytes > 40 * MB)
    assert client.send(calls.kernel(kernel_id)).gpu_bytes == 0
    assert client.send(calls.kernel(kernel_id)).gpu_utilization is None


def test_worker_processes_wait_for_a_large_kernel_and_for_no_other(
    client, growing, told, eventually
):
    def fork_servers():
        named = "jupyter_gpuckpt.images.fork_server"
        daemon = client.send(calls.handshake()).pid
        return [pid for pid in processes.children(daemon) if named in processes.arguments(pid)]

    kernel_id, take = growing("large")
    eventually(lambda: told(kernel_id)[-1] > 3 * MB)
    assert not fork_servers()
    take(600)
    eventually(fork_servers, 60)


def test_a_suspended_kernel_tells_what_its_snapshot_holds_and_how_long_a_resume_takes(
    client, kernel, settings
):
    began = time.time()
    running = client.send(calls.kernel(kernel.kernel_id))
    assert running.suspended_bytes == 0
    assert running.resume_seconds is None
    assert 0 < running.since <= began
    result = client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    suspended = client.send(calls.kernel(kernel.kernel_id))
    assert suspended.suspended_bytes == result.sizes.raw_bytes > MB
    assert suspended.memory_bytes == 0
    assert began <= suspended.since <= time.time()
    # Nothing was resumed here yet: what its own save took.
    (info,) = client.send(calls.snapshots())
    assert suspended.resume_seconds == info.seconds
    took = client.wait(client.send(calls.resume(kernel.kernel_id)).operation_id).seconds
    assert client.send(calls.kernel(kernel.kernel_id)).suspended_bytes == 0
    client.wait(client.send(calls.suspend(kernel.kernel_id)).operation_id)
    # The operation also waited for a thread and wrote its intent.
    assert 0 < client.send(calls.kernel(kernel.kernel_id)).resume_seconds <= took * 1.05
    assert client.send(calls.kernel(kernel.kernel_id)).state is KernelState.SUSPENDED
    (kept,) = (settings.data / "resume-times").glob("*.json")
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (100 * MB, 104 * MB, False),
        (100 * MB, 106 * MB, True),
        (0, 900_000, False),
        (0, 1_100_000, True),
        (106 * MB, 100 * MB, True),
    ],
)
def test_what_differs_is_five_percent_and_a_megabyte(one, other, differs):
    assert differ(one, other) is differs
    assert Usage(one).differs(Usage(other)) is differs
    assert Usage(0, one).differs(Usage(0, other)) is differs


def test_a_gpu_that_becomes_busy_differs():
    idle, busy = Usage(1, 1, 0), Usage(1, 1, 40)
    assert busy.differs(idle)
    assert not busy.differs(Usage(1, 1, 42))
    assert idle.differs(Usage(1, 1, None))
    assert not idle.differs(idle)


def resumed(times, raw_bytes, *, reading, gpu_bytes=0):
    """Measure a resume that reads for so many seconds."""
    info = SnapshotInfo("s", "k", 0.0, "suspend", sizes=Sizes(raw_bytes, gpu_bytes=gpu_bytes))
    host = Host("h", "x86_64", "6", [], "", [], "/root", "boot")
    launch = LaunchSpec("k", [], {}, "/", "/dev/null")
    manifest = Manifest(info, launch, host, "skeleton", 1, 2, 3, [], [], [])
    progress = Progress()
    with times.measured(manifest, progress), progress.stage(Stage.PAGES):
        time.sleep(reading)


def test_resumes_are_measured_with_and_without_gpu(tmp_path):
    times = ResumeTimes(tmp_path)
    assert times.estimate(Sizes(10 * MB)) is None
    resumed(times, 100 * MB, reading=0.1)
    resumed(times, 300 * MB, reading=0.3)
    small, large = times.estimate(Sizes(100 * MB)), times.estimate(Sizes(1000 * MB))
    assert 0.1 <= small < large
    assert large >= 1.0
    assert times.estimate(Sizes(100 * MB, gpu_bytes=MB)) is None
    again = ResumeTimes(tmp_path)
    assert again.estimate(Sizes(MB)) is None
    again.load()
    assert again.estimate(Sizes(100 * MB)) == small


@pytest.mark.parametrize(
    "garbage",
    [b"", b"[]", b"\xff\x00", b'{"without_gpu": [{"raw_bytes": -1}]}', b'{"with_gpu": 7}'],
)
def test_a_file_that_makes_no_sense_counts_for_nothing(tmp_path, garbage):
    times = ResumeTimes(tmp_path)
    resumed(times, MB, reading=0)
    (path,) = (tmp_path / "resume-times").iterdir()
    path.write_bytes(garbage)
    again = ResumeTimes(tmp_path)
    again.load()
    assert again.estimate(Sizes(MB)) is None
    resumed(again, MB, reading=0)
    assert again.estimate(Sizes(MB)) is not None
