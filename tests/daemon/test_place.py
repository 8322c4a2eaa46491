"""The place of a daemon: what names its socket, and which directories are trusted with it."""

import os
import stat

import msgspec
import pytest

from jupyter_gpuckpt import place
from jupyter_gpuckpt.errors import ConfigurationError, DaemonUnavailable


def runtime_env(directory, home="/nowhere"):
    return {"JUPYTER_GPUCKPT_RUNTIME_DIR": str(directory), "HOME": home}


def test_the_same_place_has_the_same_key(tmp_path):
    assert place.here(tmp_path).key == place.here(tmp_path).key


def test_a_link_to_the_data_directory_is_the_same_place(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    assert place.here(tmp_path / "link") == place.here(tmp_path / "data")


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
    here = place.here(tmp_path)
    assert msgspec.structs.replace(here, **change).key != here.key


def test_the_runtime_directory_is_private(short_dir):
    directory = place.runtime_dir(runtime_env(short_dir / "run"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_runtime_directory_that_others_could_enter_is_closed(short_dir):
    (short_dir / "run").mkdir(mode=0o755)
    directory = place.runtime_dir(runtime_env(short_dir / "run"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_symlink_is_refused(short_dir):
    (short_dir / "real").mkdir()
    (short_dir / "run").symlink_to("real")
    with pytest.raises(DaemonUnavailable, match="not a directory of this user"):
        place.runtime_dir(runtime_env(short_dir / "run"))


@pytest.mark.skipif(os.getuid() != 0, reason="giving a directory away needs root")
def test_a_directory_of_somebody_else_is_refused(short_dir):
    (short_dir / "run").mkdir(mode=0o700)
    os.chown(short_dir / "run", 12345, 12345)
    with pytest.raises(DaemonUnavailable, match="not a directory of this user"):
        place.runtime_dir(runtime_env(short_dir / "run"))


def test_a_directory_under_the_home_directory_is_refused(short_dir):
    with pytest.raises(ConfigurationError, match="under the home directory"):
        place.runtime_dir(runtime_env(short_dir / "run", home=str(short_dir)))


@pytest.mark.parametrize("home", ["/", "/tmp"])
def test_a_container_whose_home_is_everything_works(short_dir, home):
    assert place.runtime_dir(runtime_env(short_dir / "run", home=home)).is_dir()


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path):
    here = place.here(tmp_path)
    longest = place.SOCKET_PATH_BYTES - len(f"/{here.key}.sock")
    assert place.socket_path(here, tmp_path.__class__("/" + "x" * (longest - 1)))
    with pytest.raises(ConfigurationError, match="too long"):
        place.socket_path(here, tmp_path.__class__("/" + "x" * longest))


def test_a_process_is_known_by_its_start(tmp_path):
    assert place.start_time(os.getpid()) == place.start_time(os.getpid())
    assert place.start_time(os.getpid()) > 0
    assert place.start_time(2**22 + 1) is None
