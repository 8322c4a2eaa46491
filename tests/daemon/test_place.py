"""The place of a daemon: what names its socket, and which directories are trusted with it."""

import logging
import os
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.errors import ConfigurationError, DaemonUnavailable
from jupyter_gpuckpt.wire import place
from tests import uids


def runtime_env(directory, home="/nowhere"):
    return {"JUPYTER_GPUCKPT_RUNTIME_DIR": str(directory), "HOME": home}


def test_the_same_place_has_the_same_key(tmp_path):
    assert place.this_place(tmp_path).key == place.this_place(tmp_path).key


def test_a_link_to_the_data_directory_is_the_same_place(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    assert place.this_place(tmp_path / "link") == place.this_place(tmp_path / "data")


@pytest.mark.parametrize(
    "change",
    [
        {"uid": 12345},
        {"boot_id": "another"},
        {"namespaces": [1, 2, 3, 4]},
        {"cgroup": "0::/another"},
        {"data_dir": "/another"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_that_kernels_would_notice_makes_another_place(tmp_path, change):
    here = place.this_place(tmp_path)
    assert msgspec.structs.replace(here, **change).key != here.key


def test_the_runtime_directory_is_private(short_dir):
    directory = place.runtime_dir(short_dir, runtime_env(short_dir / "run"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_runtime_directory_that_others_could_enter_is_closed(short_dir):
    (short_dir / "run").mkdir(mode=0o755)
    directory = place.runtime_dir(short_dir, runtime_env(short_dir / "run"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_symlink_is_refused(short_dir):
    (short_dir / "real").mkdir()
    (short_dir / "run").symlink_to("real")
    with pytest.raises(DaemonUnavailable, match="not a directory of this user"):
        place.runtime_dir(short_dir, runtime_env(short_dir / "run"))


@pytest.mark.skipif(os.getuid() != 0, reason="giving a directory away needs root")
def test_a_directory_of_somebody_else_is_refused(short_dir):
    (short_dir / "run").mkdir(mode=0o700)
    os.chown(short_dir / "run", 12345, 12345)
    with pytest.raises(DaemonUnavailable, match="not a directory of this user"):
        place.runtime_dir(short_dir, runtime_env(short_dir / "run"))


def as_user(uid, work):
    """Begin `work` in a process of the user's; gives a function that waits for what it says."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        # Python's own handler of warnings takes what has no other.
        logging.getLogger().handlers.clear()
        sys.stdout = sys.stderr = os.fdopen(writer, "w")
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            print(work())
            sys.stdout.flush()
            status = 0
        finally:
            os._exit(status)
    os.close(writer)

    def said():
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        assert os.waitpid(pid, 0)[1] == 0, text
        return text.splitlines()

    return said


@pytest.mark.skipif(os.getuid() != 0, reason="being two other users needs root")
def test_where_somebody_has_taken_the_name_all_use_the_same_other_one(short_dir):
    user = uids.first() + 50
    squatter = user + 1
    data = short_dir / "data"
    data.mkdir()
    os.chown(short_dir, user, user)
    os.chown(data, user, user)
    taken = Path(f"/tmp/gpuckpt-{user}")
    taken.mkdir(mode=0o777)
    os.chown(taken, squatter, squatter)
    try:
        look = lambda: place.runtime_dir(data, {})  # noqa: E731
        begun = [as_user(user, look) for _ in range(4)]
        said = [one() for one in begun]
        [directory] = {Path(lines[-1]) for lines in said}
        assert directory.parent == Path("/tmp")
        status = directory.stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (user, 0o700)
        # It is said once, by who has made it.
        assert [len(lines) for lines in sorted(said, key=len)] == [1, 1, 1, 2]
        assert any(f"{taken} is not a directory of this user" in lines[0] for lines in said)
        # The name is found where it is free again, too, and never trusted when it is not ours.
        taken.rmdir()
        assert as_user(user, look)() == [str(directory)]
        os.chown(directory, squatter, squatter)
        assert as_user(user, look)() == [str(taken)]
    finally:
        uids.remove("/tmp", taken.name)


def test_a_directory_under_the_home_directory_is_refused(short_dir):
    with pytest.raises(ConfigurationError, match="under the home directory"):
        place.runtime_dir(short_dir, runtime_env(short_dir / "run", home=str(short_dir)))


@pytest.mark.parametrize("home", ["/", "/tmp"])
def test_a_container_whose_home_is_everything_works(short_dir, home):
    assert place.runtime_dir(short_dir, runtime_env(short_dir / "run", home=home)).is_dir()


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path):
    here = place.this_place(tmp_path)
    longest = place.SOCKET_PATH_BYTES - len(f"/{here.key}.sock")
    assert place.socket_path(here, tmp_path.__class__("/" + "x" * (longest - 1)))
    with pytest.raises(ConfigurationError, match="too long"):
        place.socket_path(here, tmp_path.__class__("/" + "x" * longest))


def test_a_process_is_known_by_its_start(tmp_path):
    assert place.start_time(os.getpid()) == place.start_time(os.getpid())
    assert place.start_time(os.getpid()) > 0
    assert place.start_time(2**22 + 1) is None
