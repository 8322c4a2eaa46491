"""The driver's big mmap turned into a file, shown with a program that makes exactly that call; and every way it can fail."""

import logging
import os
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.gpu.driver.gpu_staging import _END_SECONDS, FileStaging, StagingFile
from jupyter_gpuckpt.engine.injection.tracee import Tracee
from jupyter_gpuckpt.engine.tree.tree import Tree
from jupyter_gpuckpt.host import processes
from tests.conftest import wait_for

MB = 1 << 20

CALL = 0x2 | 0x20 | 0x8000


def names(directory):
    """Return its content."""
    return sorted(path.name for path in Path(directory).iterdir())


@pytest.fixture
def small_tmpfs(tmp_path):
    """Yield a folder on a tmpfs of 8 MB."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)], check=False
    )
    if made.returncode:
        pytest.skip("mounting needs root")
    yield str(tmp_path)
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def private(driver, result, length):
    """Whether the program got working private memory."""
    area = driver.mapping(result["address"])
    return (
        result["last"] == 7 and area.path == "" and area.private and area.end - area.start >= length
    )


def test_the_call_becomes_a_mapping_of_a_new_file(driver, directory):
    length = 100 * MB + 4096
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        began = time.perf_counter()
        result = driver.map(length)
        print(f"100 MB: {time.perf_counter() - began:.3f} s")
    assert staging.files == [StagingFile(f"{directory}/gpu-{driver.pid}-0", 102 * MB)]
    area = driver.mapping(result["address"])
    assert (area.path, area.perms) == (staging.files[0].path, "rw-s")
    assert area.end - area.start == length
    flags = driver.flags_at(result["address"])
    assert "dc" in flags, "a forked child must not keep it"
    assert "sh" in flags
    status = Path(staging.files[0].path).stat()
    assert (status.st_size, status.st_mode & 0o777) == (102 * MB, 0o600)
    assert status.st_blocks * 512 == 102 * MB
    assert Path(staging.files[0].path).read_bytes()[:1] == b"\x07"
    assert [path for path in processes.descriptors(driver.pid).values() if "gpu-" in path] == []
    assert result["last"] == 7


def test_several_calls_and_generations_get_a_file_each(driver, directory):
    stale = Path(f"{directory}/gpu-{driver.pid}-1")
    stale.write_text("of an earlier generation")
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as first:
        addresses = [driver.map(4 * MB)["address"], driver.map(6 * MB)["address"]]
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as second:
        addresses.append(driver.map(2 * MB)["address"])
    paths = [f"{directory}/gpu-{driver.pid}-{number}" for number in (0, 2, 3)]
    assert [file.path for file in first.files + second.files] == paths
    assert [file.length for file in first.files + second.files] == [4 * MB, 6 * MB, 2 * MB]
    assert [driver.mapping(address).path for address in addresses] == paths
    assert stale.read_text() == "of an earlier generation"


def test_the_thread_is_let_go_soon_after_the_call(driver, directory):
    status = Path(f"/proc/{driver.pid}/task/{driver.tid}/status")
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        assert "TracerPid:\t0\n" not in status.read_text()
        driver.map(4 * MB, extra="calls")
        assert "TracerPid:\t0\n" in status.read_text()
    assert len(staging.files) == 1


def test_the_thread_is_let_go_where_that_call_does_not_come(driver, directory):
    status = Path(f"/proc/{driver.pid}/task/{driver.tid}/status")
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        assert "TracerPid:\t0\n" not in status.read_text()
        driver.map(1 * MB, extra="calls")
        assert "TracerPid:\t0\n" in status.read_text()
    assert staging.files == []


@pytest.mark.parametrize(
    ("length", "flags"),
    [(1 * MB, CALL), (8 * MB, 0x22), (8 * MB, 0x21 | 0x8000)],
    ids=["small", "not populated", "shared"],
)
def test_other_calls_are_left_alone(driver, directory, length, flags):
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        result = driver.map(length, flags)
    assert result["last"] == 7
    assert staging.files == []
    assert names(directory) == []


def test_a_block_without_any_call_changes_nothing(driver, directory):
    began = time.perf_counter()
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        pass
    assert time.perf_counter() - began < _END_SECONDS - 5  # it is not waited for
    assert staging.files == []
    assert private(driver, driver.map(4 * MB), 4 * MB)


def test_a_missing_directory_leaves_private_memory(driver, directory):
    with FileStaging(driver.tree, driver.pid, driver.tid, f"{directory}/none") as staging:
        assert private(driver, driver.map(8 * MB), 8 * MB)
    assert staging.files == []


def test_a_tmpfs_that_is_too_small_leaves_private_memory_and_no_file(running_driver, small_tmpfs):
    with running_driver() as driver:
        with FileStaging(driver.tree, driver.pid, driver.tid, small_tmpfs) as staging:
            assert private(driver, driver.map(64 * MB), 64 * MB)
            assert names(small_tmpfs) == []
            driver.map(4 * MB)
        assert [file.length for file in staging.files] == [4 * MB]


def test_a_file_that_the_process_cannot_open_leaves_private_memory_and_no_file(
    running_driver, tmp_path, directory
):
    if os.geteuid():
        pytest.skip("chroot needs root")
    with running_driver(tmp_path) as driver:
        # Outside there is such a folder, in the process's own root there is none.
        tree = Tree(os.getpid(), 0, 0, 0, driver.pid, driver.pid, "")
        with FileStaging(tree, driver.pid, driver.tid, directory) as staging:
            assert private(driver, driver.map(8 * MB), 8 * MB)
        assert staging.files == []
        assert names(directory) == []


def test_a_limit_of_address_space_gives_the_error_that_the_call_would_have_given(driver, directory):
    resource.prlimit(driver.pid, resource.RLIMIT_AS, (1 << 30, 1 << 30))
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        assert driver.map(1 << 30) == {"errno": 12}
        assert driver.map(4 * MB)["last"] == 7
    assert [file.length for file in staging.files] == [4 * MB]
    assert len(names(directory)) == 1


def test_a_thread_that_may_not_be_traced_leaves_private_memory(driver, directory, caplog):
    done, ready = threading.Event(), threading.Event()

    def trace():
        with Tracee(driver.pid, driver.tid) as tracee:
            ready.set()
            tracee.restart(7)
            done.wait()

    other = threading.Thread(target=trace)
    other.start()
    ready.wait()
    with (
        caplog.at_level(logging.INFO),
        FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging,
    ):
        assert private(driver, driver.map(4 * MB), 4 * MB)
    done.set()
    other.join()
    assert staging.files == []
    assert "private memory" in caplog.text


def test_a_refused_checkpoint_leaves_no_file(driver, directory):
    staging = FileStaging(driver.tree, driver.pid, driver.tid, directory)

    def refused():
        with staging:
            assert driver.map(4 * MB)["last"] == 7
            assert len(names(directory)) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        refused()
    assert names(directory) == []
    assert staging.files == []
    assert driver.map(4 * MB)["last"] == 7


def test_a_child_forked_meanwhile_does_not_keep_the_file(driver, directory):
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        result = driver.map(4 * MB, extra="fork")
    try:
        child = processes.maps(result["child"])
        assert child
        assert not [area for area in child if area.path == staging.files[0].path]
    finally:
        os.kill(result["child"], signal.SIGKILL)


def test_signals_and_stops_pass_through(driver, directory):
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        for _ in range(50):
            os.kill(driver.pid, signal.SIGUSR1)
            # Linux merges signals that wait.
            wait_for(lambda: int(processes.status(driver.pid)["ShdPnd"], 16) == 0)
        os.kill(driver.pid, signal.SIGSTOP)
        wait_for(lambda: processes.state(driver.pid) == "T")
        driver.ask(4 * MB)
        time.sleep(0.1)
        assert staging.files == []
        assert processes.state(driver.pid) == "T"
        os.kill(driver.pid, signal.SIGCONT)
        result = driver.answer()
    assert len(staging.files) == 1
    assert result["signals"] == 50
    assert driver.map(4 * MB)["last"] == 7


def test_a_process_killed_meanwhile_ends_the_block(driver, directory):
    with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
        os.kill(driver.pid, signal.SIGKILL)
        driver.process.wait()
    assert staging.files == []


def test_a_hundred_blocks_in_a_row_leave_a_thread_that_works(driver, directory):
    began = time.perf_counter()
    for index in range(100):
        with FileStaging(driver.tree, driver.pid, driver.tid, directory) as staging:
            if index % 10 == 0:
                assert driver.map(2 * MB)["last"] == 7
        staging.discard()
    print(f"100 blocks: {time.perf_counter() - began:.2f} s")
    assert names(directory) == []
    assert driver.map(4 * MB)["last"] == 7
