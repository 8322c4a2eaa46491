"""Containers of an ordinary user, by podman: the user exists only in a mount namespace of the tests' own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.containers import machine_files
from tests.containers.podman import Podman, run_podman

_UID, _NAME, _FIRST_OF_ITS_OWN = 64533, "gpuckpt-rootless", 700000
_ACCOUNTS = ("passwd", "subuid", "subgid")


class RootlessPodman(Podman):
    """Runs containers as a user without any right, who has 65536 ids of its own (/etc/subuid)."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._home = folder / "home"
        for name in ("root", "runroot", "tmpdir", "run"):
            (self._home / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        account = f"{_NAME}:x:{_UID}:{_UID}::{self._home}:/bin/sh\n"
        own = f"{_NAME}:{_FIRST_OF_ITS_OWN}:65536\n"
        for name, text in (("passwd", account), ("subuid", own), ("subgid", own)):
            (folder / name).write_text(Path("/etc", name).read_text() + text)
        # Below a closed folder the user finds nothing: what containers need is shown elsewhere.
        self._shown = {path: folder / f"shown-{i}" for i, path in enumerate(machine_files.wanted())}
        self._options = self._readable(folder)
        for path in (self._home, *self._home.rglob("*"), *(folder / "open").rglob("*")):
            os.chown(path, _UID, _UID)

    def obstacle(self) -> str:
        """Return why no container can be run here; an empty string if one can."""
        return "" if shutil.which("newuidmap") else "newuidmap is not installed"

    def _readable(self, folder: Path) -> list[str]:
        shown = {f"{path}:{path}:ro": f"{to}:{path}:ro" for path, to in self._shown.items()}
        return [shown.get(word, word) for word in machine_files.readable(folder)]

    def _run(
        self,
        options: list[str],
        command: list[str],
        rootfs: str = "",
        prefix: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        upper, work, merged = (self._folder / name for name in ("upper", "work", "merged"))
        for path in (upper / "run", work, merged, *self._shown.values()):
            path.mkdir(parents=True, exist_ok=True)
        (upper / "run/.containerenv").touch()
        steps = [
            f"mount -t overlay -o lowerdir=/,upperdir={upper},workdir={work} overlay {merged}",
            *(f"mount --bind {self._folder / name} /etc/{name}" for name in _ACCOUNTS),
            *(
                f"mount --bind {shlex.quote(str(path))} {shown}"
                for path, shown in self._shown.items()
            ),
            f'exec setpriv --reuid={_UID} --regid={_UID} --clear-groups --inh-caps=-all "$@"',
        ]
        # A PID namespace: podman leaves a process that keeps its namespaces for the next time.
        apart = ["unshare", "--mount", "--propagation=slave", "--pid", "--fork", "--kill-child"]
        return run_podman(
            [*self._options, *options],
            [str(merged), *command],
            prefix=[*apart, "--mount-proc", "sh", "-c", " && ".join(steps), "sh"],
            store=self._home,
            folder=self._folder,
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": str(self._home),
                "XDG_RUNTIME_DIR": str(self._home / "run"),
                "CONTAINERS_CONF": str(self._folder / "containers.conf"),
            },
        )
