"""What one user of a machine can do to another's kernels and snapshots: nothing. Each is tried for real."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from jupyter_gpuckpt.host import privileges, processes
from jupyter_gpuckpt.wire.manifest_records import SCRATCH
from tests import uids
from tests.conftest import wait_for
from tests.parameters import some_slow
from tests.users.owned import SECRET
from tests.users.user import Refused, User

#: Ways to another's process, by name; each is an expression that must fail.
WAYS = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
class Area(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("length", ctypes.c_size_t)]
def read_memory(pid):
    place = ctypes.create_string_buffer(16)
    ours, theirs = Area(ctypes.addressof(place), 16), Area(0x400000, 16)
    checked(libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0))
def enter(pid, name):
    descriptor = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
    checked(libc.setns(descriptor, 0))
ways = {
    "mem": lambda pid: open(f"/proc/{pid}/mem", "rb"),
    "environ": lambda pid: open(f"/proc/{pid}/environ", "rb").read(),
    "maps": lambda pid: open(f"/proc/{pid}/maps").read(),
    "root": lambda pid: os.listdir(f"/proc/{pid}/root/dev/shm/.gpuckpt"),
    "cwd": lambda pid: os.listdir(f"/proc/{pid}/cwd/"),
    "descriptors": lambda pid: os.listdir(f"/proc/{pid}/fd"),
    "seize": lambda pid: checked(libc.ptrace(0x4206, pid, 0, 0)),
    "process_vm_readv": read_memory,
    "user namespace": lambda pid: enter(pid, "user"),
    "mount namespace": lambda pid: enter(pid, "mnt"),
    "stop": lambda pid: os.kill(pid, signal.SIGSTOP),
    "kill": lambda pid: os.kill(pid, signal.SIGKILL),
    "scheduling": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
}
result = []
for pid in pids:
    for name, way in ways.items():
        try:
            way(pid)
        except (PermissionError, ProcessLookupError):
            continue
        except OSError as error:
            name += f" ({error})"
        result.append([pid, name])
"""


def test_nothing_opens_another_s_processes(alice, bob):
    before = alice.run("result = mine.count()")
    pids = alice.run("result = mine.pids()")
    assert bob.run(WAYS, pids=list(pids.values())) == []
    enter = """
    import subprocess
    from jupyter_gpuckpt.engine.settings import INIT
    done = subprocess.run([INIT, "enter", str(pid), "id"], capture_output=True, text=True)
    result = [done.returncode, done.stdout, done.stderr]
    """
    status, out, error = bob.run(enter, pid=pids["init"])
    assert status != 0
    assert "uid=" not in out
    assert "Operation not permitted" in out + error
    assert alice.run("result = mine.count()") > before


def test_no_file_of_another_can_be_opened(alice, bob):
    alice.run("""
    snapshot = mine.do("save")
    owned.Path.home().chmod(0o755)  # as on many machines
    """)
    data = Path(alice.run("result = str(mine.data)"))
    every = [str(path) for path in data.rglob("*")]
    assert any(name.endswith(".pack") for name in every)
    look = """
    import os
    result = []
    for path in paths:
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_PATH):
            try:
                os.open(path, flags)
            except PermissionError:
                continue
            result.append(path)
    """
    assert bob.run(look, paths=every) == []
    with pytest.raises(Refused) as refusal:
        bob.run("import os; result = os.listdir(path)", path=str(data))
    assert refusal.value.kind == "PermissionError"


def test_nobody_else_can_talk_to_a_daemon(alice, bob):
    path = alice.run("result = str(mine.client._target.socket)")
    with pytest.raises(Refused) as refusal:
        bob.run("import socket; socket.socket(socket.AF_UNIX).connect(path)", path=path)
    assert refusal.value.kind == "PermissionError"


def test_what_all_see_of_processes_tells_no_secret(alice, bob):
    pids = alice.run("result = mine.pids()")
    alice.run("mine.do('save')")
    look = """
    result = []
    for pid in pids:
        for name in ("cmdline", "comm", "status"):
            result.append(open(f"/proc/{pid}/{name}", errors="replace").read())
    """
    assert SECRET not in "".join(bob.run(look, pids=list(pids.values())))


def test_an_exported_snapshot_is_its_owner_s_alone(alice, bob, short_dir):
    short_dir.chmod(0o1777)
    archive = short_dir / "session.tar"
    alice.run(
        """
        snapshot = mine.do("save")
        import subprocess, sys
        words = [sys.executable, "-m", "jupyter_gpuckpt.cli", "export", snapshot, archive]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        """,
        archive=str(archive),
    )
    with pytest.raises(Refused) as refusal:
        bob.run("open(path, 'rb')", path=str(archive))
    assert refusal.value.kind == "PermissionError"


SQUATS = {
    "a folder": "os.mkdir(path, 0o777)",
    "a file": "open(path, 'w').close()",
    "a link to a folder of the attacker's": "os.mkdir(path + '-own', 0o777); os.symlink(path + '-own', path)",
    "a link to nowhere": "os.symlink('/nonexistent', path)",
}


@pytest.mark.parametrize("way", some_slow(SQUATS, {"a folder", "a link to nowhere"}))
def test_a_taken_name_in_tmp_costs_nothing(bob, way):
    uid = uids.first() + 20
    taken = Path(f"/tmp/gpuckpt-{uid}")
    bob.run(f"import os\n{SQUATS[way]}", path=str(taken))
    try:
        with User(uid, JUPYTER_GPUCKPT_RUNTIME_DIR="") as user:
            user.run("from tests.users import owned\nmine = owned.Owned()")
            try:
                assert user.run("mine.do('suspend'); mine.do('resume'); result = mine.count()")
                path = Path(user.run("result = str(mine.client._target.socket)"))
                assert path.parent.stat().st_uid == uid
                assert not path.is_relative_to(taken)
            finally:
                user.run("mine.close()")
    finally:
        uids.remove("/tmp", taken.name)


def test_a_data_directory_of_another_is_refused(bob):
    """Its owner could put a forged store there, or read what is stored."""
    folder = bob.run(
        """
        import os, tempfile
        folder = tempfile.mkdtemp(dir="/tmp")
        os.chmod(folder, 0o1777)
        for name in ("data", "data/store"):
            os.mkdir(f"{folder}/{name}")
            os.chmod(f"{folder}/{name}", 0o777)
        result = folder
        """
    )
    try:
        with (
            User(uids.first() + 10) as user,
            pytest.raises(Refused) as refusal,
        ):
            user.run(
                "from tests.users import owned\nowned.Owned(data_dir=folder)",
                folder=f"{folder}/data",
            )
        assert refusal.value.kind == "DaemonUnavailable"
        assert "belongs to another user" in refusal.value.text
        assert f"{folder}/data" in refusal.value.text
        assert not list(Path(folder, "data/store").iterdir())
    finally:
        shutil.rmtree(folder)


@pytest.mark.skipif(not privileges.sees_whole_machine(), reason="a container has one user")
def test_a_data_directory_that_all_could_swap_is_refused(bob, short_dir):
    short_dir.chmod(0o777)
    with User(uids.first() + 10) as user, pytest.raises(Refused) as refusal:
        user.run(
            "from tests.users import owned\nowned.Owned(data_dir=folder)",
            folder=f"{short_dir}/data",
        )
    assert refusal.value.kind == "DaemonUnavailable"
    assert "could put another directory in the place" in refusal.value.text


#: Ways to get another directory into the place of one; each is an expression that must fail.
SWAPS = """
import os
os.mkdir(path + "-own")
ways = {
    "rename": lambda: os.rename(path, path + "-gone"),
    "rename over": lambda: os.rename(path + "-own", path),
    "link": lambda: os.symlink(path + "-own", path),
    "remove": lambda: os.rmdir(path),
    "store": lambda: os.rename(path + "/store", path + "/gone"),
    "mode": lambda: os.chmod(path, 0o777),
}
result = []
for name, way in ways.items():
    try:
        way()
    except (PermissionError, FileExistsError):
        continue
    result.append(name)
"""


def test_a_data_directory_in_a_shared_folder_cannot_be_swapped_during_a_save(bob, short_dir):
    short_dir.chmod(0o1777)
    data = f"{short_dir}/data"
    with User(uids.first() + 10) as user:
        user.run("from tests.users import owned\nmine = owned.Owned(data_dir=data)", data=data)
        try:
            user.run(
                """
                import threading
                from jupyter_gpuckpt.wire import calls
                saved = []
                saving = threading.Thread(target=lambda: saved.append(mine.do("save")))
                saving.start()
                """
            )
            assert bob.run(SWAPS, path=data) == []
            snapshot = user.run("saving.join(); [result] = saved")
            user.run("mine.do('suspend'); mine.do('resume', snapshot)", snapshot=snapshot)
            assert user.run("result = mine.count()")
        finally:
            user.run("mine.close()")


def test_a_link_in_the_place_of_an_export_leads_nowhere(alice, bob, short_dir):
    """The attacker knows what the archive will be called, and wants it to go over a file of the victim's."""
    short_dir.chmod(0o777)
    archive = str(short_dir / "session.tar")
    precious = alice.run(
        """
        precious = owned.Path.home() / "precious"
        precious.write_text("precious")
        result = str(precious)
        """
    )
    bob.run("import os; os.symlink(precious, archive)", precious=precious, archive=archive)
    alice.run(
        """
        import subprocess, sys
        snapshot = mine.do("save")
        words = [sys.executable, "-m", "jupyter_gpuckpt.cli", "export", snapshot, archive]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert precious.read_text() == "precious"
        assert not owned.Path(archive).is_symlink()
        """,
        archive=archive,
    )
    with pytest.raises(Refused) as refusal:
        bob.run("open(path, 'rb')", path=archive)
    assert refusal.value.kind == "PermissionError"


@pytest.mark.parametrize(
    "way", some_slow(SQUATS, {"a file", "a link to a folder of the attacker's"})
)
def test_a_taken_name_in_shared_memory_costs_nothing(bob, way):
    """It is where the scratch of kernels is mounted."""
    path = "/dev/shm/.gpuckpt-attack" if Path(SCRATCH).exists() else SCRATCH
    uids.remove("/dev/shm", Path(path).name)  # of a run that was killed
    bob.run(f"import os\n{SQUATS[way]}", path=path)
    try:
        with User(uids.first() + 10) as user:
            user.run("from tests.users import owned\nmine = owned.Owned()")
            try:
                assert user.run("mine.do('suspend'); mine.do('resume'); result = mine.count()")
            finally:
                user.run("mine.close()")
    finally:
        uids.remove("/dev/shm", Path(path).name)


#: What it holds is new each time that it counts.
CHANGING = """
import os, time
count = 0
while True:
    count += 1
    memory = os.urandom(20 << 20)
    print(count, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def small_disk(short_dir):
    """Yield a file system for all, and the pid of a process that sees it: the test's own mounts stay as they are."""
    if os.geteuid():
        pytest.skip("being two other users needs root")
    mount = f"mount -t tmpfs -o size=96m,mode=1777 none {short_dir} && echo mounted && exec cat"
    words = ["unshare", "--mount", "sh", "-c", mount]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mounted\n"
        yield short_dir, holder.pid


def test_a_full_disk_costs_neither_the_kernel_nor_a_snapshot(criu, small_disk):
    """The attacker fills the file system that both use."""
    folder, holder = small_disk
    with (
        User(uids.first() + 1, mounts_of=holder) as bob,
        User(uids.first() + 10, mounts_of=holder) as user,
    ):
        user.run(
            "from tests.users import owned\nmine = owned.Owned(changing, data)",
            changing=CHANGING,
            data=f"{folder}/data",
        )
        try:
            snapshot = user.run("mine.count(); result = mine.do('save')")
            bob.run(
                """
                import contextlib
                with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
                    for _ in range(1000):
                        file.write(bytes(100_000))
                """,
                path=f"{folder}/filler",
            )
            with pytest.raises(Refused) as refusal:
                user.run("mine.do('suspend')")
            assert refusal.value.kind == "StoreFull"
            assert user.run("result = mine.count()")
            bob.run("import os; os.unlink(path)", path=f"{folder}/filler")
            user.run("mine.do('suspend'); mine.do('resume', snapshot)", snapshot=snapshot)
            assert user.run("result = mine.count()")
        finally:
            user.run("mine.close()")


#: Every process of it makes others without end, as many as Linux lets the user have.
FORK_BOMB = """
import os, resource, time
resource.setrlimit(resource.RLIMIT_NPROC, (150, 150))
print(1, flush=True)
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
"""


def test_a_fork_bomb_hurts_its_own_user_only(alice, bob):
    bob.run("from tests.users import owned\nmine = owned.Owned(bomb)", bomb=FORK_BOMB)
    init_pid = bob.run("result = mine.client.send(owned.calls.kernel(mine.kernel_id)).init_pid")
    wait_for(lambda: len(processes.descendants(init_pid)) > 100)
    before = alice.run("result = mine.count()")
    alice.run("mine.do('save'); mine.do('suspend'); mine.do('resume')")
    assert alice.run("result = mine.count()") > before
    bob.run("mine.close()")
    wait_for(lambda: processes.state(init_pid) is None)
    wait_for(
        lambda: not [pid for pid in processes.every() if FORK_BOMB in processes.arguments(pid)]
    )
