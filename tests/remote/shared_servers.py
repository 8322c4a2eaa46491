"""Object stores that all tests of a run share: the first worker that needs one starts it, and it ends with the run.

Each test has a prefix of its own there. A test that stops a server, or that counts what it has, starts its own (`servers`).
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.remote import run_beside, servers


def seaweedfs(config: pytest.Config) -> str:
    """Return the URL of the run's SeaweedFS."""
    return _url_of(servers.SeaweedFS, config)


def azurite(config: pytest.Config) -> str:
    """Return the URL of the account of the run's Azurite."""
    return _url_of(servers.Azurite, config)


def _url_of(kind: type[servers.SeaweedFS | servers.Azurite], config: pytest.Config) -> str:
    run_pid, folder = _run(config)
    with (folder / f"{kind.__name__}.url").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if url := file.read():
            return url
        # In a new folder: a worker may have crashed after it had started one that nobody knows.
        server = kind(Path(tempfile.mkdtemp(prefix=f"{kind.__name__}-", dir=folder)))
        _start(server, run_pid)
        file.write(server.url)
        return server.url


def _run(config: pytest.Config) -> tuple[int, Path]:
    """Return the id of the process that began this run, and the run's temporary folder."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    folder = factory.getbasetemp()
    if hasattr(config, "workerinput"):
        return config.workerinput["run_pid"], folder.parent
    return os.getpid(), folder


def _start(server: servers.Server, run_pid: int) -> None:
    """Start a server beside the run and wait until it is up.

    It gets no variables of the test that happens to be the first: what names the folders of a test is killed after it.
    """
    beside = [sys.executable, "-I", "-S", run_beside.__file__, str(run_pid)]
    with server.log.open("wb") as log:
        subprocess.run(
            [*beside, *server.words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": os.environ["PATH"], **server.variables},
            cwd=server.folder,
            check=True,
        )
    server.wait_until_up()
