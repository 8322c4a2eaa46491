"""Real containers, by a docker daemon of the tests' own, in an image that is empty: this machine's folders are mounted into it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from tests.conftest import wait_for
from tests.containers import machine_files
from tests.containers.inside import Result

_SYSTEM = [Path("/", name) for name in ("bin", "etc", "lib", "lib64", "sbin", "usr")]
_EMPTY = ("proc", "sys", "dev", "run", "var")
_IMAGE = "gpuckpt-empty"


class Docker:
    """A daemon that keeps everything below `folder`, and its containers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = os.environ | {"DOCKER_HOST": f"unix://{folder}/socket"}
        machine_files.write_profile(folder)
        with (folder / "log").open("wb") as log:
            self._daemon = subprocess.Popen(
                [
                    *("dockerd", "--bridge=none", "--iptables=false", "--storage-driver=vfs"),
                    *(f"--{name}={folder / name}" for name in ("data-root", "exec-root")),
                    *(f"--pidfile={folder / 'pid'}", f"--host=unix://{folder}/socket"),
                    *(f"--default-ulimit={limit}" for limit in machine_files.limits()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @staticmethod
    def obstacle() -> str:
        """Return why no daemon can be started here; an empty string if one can."""
        for program in ("dockerd", "docker"):
            if not shutil.which(program):
                return f"{program} is not installed"
        return "a docker daemon takes root" if os.geteuid() else ""

    def begin(self) -> None:
        """Wait for the daemon and make the image."""
        wait_for(
            lambda: self._daemon.poll() is not None or self._docker(["version"]).returncode == 0,
            60,
            (self._folder / "log").read_text,
        )
        content = BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            for name in [*_EMPTY, "tmp"]:
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                archive.addfile(entry)
        made = self._docker(["import", "-", _IMAGE], content.getvalue())
        assert made.returncode == 0, made.stderr.decode()

    def run(self, options: list[str], *, foreign_root: bool = False) -> Result:
        """Run `inside` in a container with these options. File names in them are relative to the folder."""
        assert not foreign_root, "users of its own are a setting of the daemon's"
        system = [path for path in _SYSTEM if path.exists()]
        opened = machine_files.readable(self._folder)
        shown = [
            path
            for path in machine_files.wanted()
            if not set(system) & {path, *path.parents} and f"{path}:{path}:ro" not in opened
        ]
        done = self._docker(
            [
                *("run", "--rm", "--network=none", *machine_files.environment()),
                *machine_files.volumes([*system, *shown]),
                *opened,
                *options,
                _IMAGE,
                *machine_files.INSIDE,
            ]
        )
        return machine_files.result(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def end(self) -> None:
        """Stop the daemon, which stops its own containers and containerd."""
        self._daemon.send_signal(signal.SIGTERM)
        self._daemon.wait(60)

    def _docker(self, words: list[str], given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["docker", *words],
            env=self._environment,
            cwd=self._folder,
            input=given,
            capture_output=True,
            timeout=machine_files.SECONDS,
            check=False,
        )
