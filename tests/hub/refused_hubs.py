"""Hubs that refuse their configuration at their start."""

import subprocess

from tests.ports import free_port
from tests.programs import python_module


def refusal_at_start(folder, lines):
    """Start a hub with these lines of configuration; return what it says on standard error when it ends with an error."""
    config = folder / "jupyterhub_config.py"
    common = (
        'c.JupyterHub.authenticator_class = "dummy"\n'
        "c.Authenticator.allow_all = True\n"
        f'c.JupyterHub.hub_bind_url = "http://127.0.0.1:{free_port()}"\n'
    )
    config.write_text(lines + common)
    done = subprocess.run(
        [*python_module("jupyterhub"), "-f", str(config)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr
