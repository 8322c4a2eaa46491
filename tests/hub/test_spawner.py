"""The spawner class by itself: from which spawners it is made, and what it says."""

import asyncio
import subprocess
import sys

import pytest
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from traitlets.config import Config

from jupyter_gpuckpt.hub import GpuCkptSpawnerMixin, with_suspend
from jupyter_gpuckpt.hub.spawner import Waiting


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("simple", SimpleLocalProcessSpawner),
        ("jupyterhub.spawner.LocalProcessSpawner", LocalProcessSpawner),
        (LocalProcessSpawner, LocalProcessSpawner),
    ],
)
def test_it_is_made_from_any_spawner_and_configured_by_its_names(given, used):
    made = with_suspend(given)
    assert issubclass(made, used)
    assert issubclass(made, GpuCkptSpawnerMixin)
    config = Config()
    config[used.__name__].cmd = ["mine"]
    config.GpuCkptSpawnerMixin.suspend_timeout = 7
    spawner = made(config=config)
    assert (spawner.cmd, spawner.suspend_timeout) == (["mine"], 7)


def test_an_unknown_spawner_is_an_import_error():
    with pytest.raises(ImportError):
        with_suspend("nowhere.Spawner")


def test_what_waits_survives_the_hub_until_the_server_has_started():
    class Started(SimpleLocalProcessSpawner):
        async def start(self):
            return "http://127.0.0.1:1"

    spawner = with_suspend(Started)()
    spawner.load_state({"pid": 0, "gpuckpt_waiting": {"count": 1, "names": ["a.ipynb"]}})
    # The hub clears the state of a spawner before it starts it.
    spawner.clear_state()
    assert spawner.get_state()["gpuckpt_waiting"] == {"count": 1, "names": ["a.ipynb"]}
    assert asyncio.run(spawner.start()) == "http://127.0.0.1:1"
    assert "gpuckpt_waiting" not in spawner.get_state()


def test_what_waits_is_said_in_a_sentence():
    assert Waiting(1, ["a.ipynb"]).message() == "1 suspended session is waiting: a.ipynb"
    assert Waiting(7, ["a.ipynb", "b.ipynb"]).message() == (
        "7 suspended sessions are waiting: a.ipynb, b.ipynb, ..."
    )


def test_without_jupyterhub_the_import_says_what_to_install():
    program = "import sys; sys.modules['jupyterhub'] = None; import jupyter_gpuckpt.hub"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert "pip install 'jupyter_gpuckpt[hub]'" in done.stderr.splitlines()[-1]
