"""The daemon's settings: from the environment, from traits, over the process boundary."""

import os
import subprocess
import sys

import msgspec
import pytest

from jupyter_gpuckpt.client.daemon_traits import GpuCkptDaemon
from jupyter_gpuckpt.errors import ConfigurationError
from jupyter_gpuckpt.wire import daemon_settings
from jupyter_gpuckpt.wire.daemon_settings import Settings

ENVIRONMENT = {
    "JUPYTER_GPUCKPT_DATA_DIR": "/data",
    "JUPYTER_GPUCKPT_STORE_DIR": "/store",
    "JUPYTER_GPUCKPT_CRIU": "/opt/criu",
    "JUPYTER_GPUCKPT_IDLE_EXIT": "7.5",
}


def test_the_environment_decides():
    expected = Settings("/data", "/store", "/opt/criu", idle_exit_seconds=7.5)
    assert daemon_settings.from_environment(ENVIRONMENT) == expected


def test_without_environment_data_lies_where_xdg_says(monkeypatch):
    monkeypatch.setenv("HOME", "/home/jovyan")
    default = daemon_settings.from_environment({})
    assert default.data_dir == "/home/jovyan/.local/share/jupyter-gpuckpt"
    assert str(default.store) == f"{default.data_dir}/store"
    chosen = daemon_settings.from_environment({"XDG_DATA_HOME": "/xdg"})
    assert chosen.data_dir == "/xdg/jupyter-gpuckpt"


def test_traits_have_the_same_defaults(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert GpuCkptDaemon().settings() == daemon_settings.from_environment()


def test_a_trait_wins_over_the_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("JUPYTER_GPUCKPT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("JUPYTER_GPUCKPT_DATA_DIR", "/data")
    expected = Settings("/mine", threads=3, memory_bytes=5, near_bytes=7)
    chosen = GpuCkptDaemon(data_dir="/mine", threads=3, memory_bytes=5, near_bytes=7)
    assert chosen.settings() == expected


def test_every_trait_says_what_its_default_is():
    for name, trait in GpuCkptDaemon.class_own_traits(config=True).items():
        assert "Default:" in trait.help, name


def test_a_number_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match="JUPYTER_GPUCKPT_IDLE_EXIT"):
        daemon_settings.from_environment({"JUPYTER_GPUCKPT_IDLE_EXIT": "soon"})


def test_settings_survive_the_way_to_the_daemon():
    settings = Settings("/data", threads=2, idle_exit_seconds=1.5)
    assert daemon_settings.from_json(msgspec.json.encode(settings)) == settings


@pytest.mark.parametrize("text", ["", "{}", '{"data_dir": 1}', '{"data_dir": "/x", "other": 1}'])
def test_settings_that_are_not_understood_are_refused(text):
    with pytest.raises(ConfigurationError):
        daemon_settings.from_json(text)


@pytest.mark.parametrize("module", ["jupyter_gpuckpt.client", "jupyter_gpuckpt.daemon.app"])
def test_neither_client_nor_daemon_needs_jupyter(module):
    code = f"import sys, {module}; print([m for m in sys.modules if m.startswith(('traitlets', 'jupyter_client', 'jupyter_server'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_daemon_imports_at_its_start_only_what_every_daemon_needs():
    """Every daemon starts with these imports, most for a few kernels of one user; psutil alone takes a twentieth of their time."""
    code = "import sys, jupyter_gpuckpt.daemon.app; print([m for m in ('psutil', 'httpx', 'click') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
