"""Fixtures: templates in a folder that one test module has for itself, and kernels that are started from them."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.client.templates import TemplateFolder
from jupyter_gpuckpt.wire import calls

#: In the environment of the process that builds a template; it must be in no copy.
PLANTED = "planted-" + "a-secret-of-the-builder"


class Templates:
    """The templates of a test's environment, by the command line."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.env, self.folder = env, folder
        self.data = Path(env["JUPYTER_GPUCKPT_DATA_DIR"])
        self.kernelspecs = Path(env["JUPYTER_DATA_DIR"]) / "kernels"

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `jupyter gpuckpt template`."""
        return subprocess.run(
            [sys.executable, "-m", "jupyter_gpuckpt.cli", "template", *words],
            env={**self.env, "AWS_SECRET_ACCESS_KEY": PLANTED, **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def recipe(self, name: str, code: str) -> Path:
        """Write a script as the recipe of this name."""
        path = self.folder / f"{name}.py"
        path.write_text(code)
        return path

    def create(self, name: str, code: str, *options: str) -> Path:
        """Make a template of a script; return the script."""
        path = self.recipe(name, code)
        done = self.run("create", name, "--from", str(path), *options)
        assert done.returncode == 0, done.stderr
        return path

    def at(self, name: str) -> TemplateFolder:
        """Return the folder of a template."""
        return TemplateFolder(self.data, name)

    def names(self) -> list[str]:
        """Return the names of all kernelspecs that were written."""
        return sorted(path.parent.name for path in self.kernelspecs.glob("*/kernel.json"))


@pytest.fixture
def templates(ours, tmp_path):
    """Return the templates of the test's environment."""
    return Templates(ours, tmp_path)


@pytest.fixture
def ours(module_daemon_env, monkeypatch):
    """Give this process the environment of the module's daemon."""
    env = {**module_daemon_env, "JUPYTER_DEFAULT_PROVISIONER_NAME": "gpuckpt-provisioner"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    KernelProvisionerFactory.clear_instance()
    yield env
    KernelProvisionerFactory.clear_instance()


@contextmanager
def started(name, **options):
    """Yield manager and blocking client of a kernel."""
    manager, client = start_new_kernel(kernel_name=name, startup_timeout=120, **options)
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.context.destroy(linger=0)


def is_copy(manager):
    """Return whether a kernel is a copy: nothing but a copy has ports that were another kernel's."""
    return bool(manager.provisioner.kernel.moved_ports)


def snapshots():
    """Return the snapshots of this environment's daemon."""
    with Client.connect() as client:
        return client.send(calls.snapshots())
