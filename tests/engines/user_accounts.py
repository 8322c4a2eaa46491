"""Accounts of ordinary users, which only the processes of a mount namespace see: `python -m tests.engines.user_accounts FOLDER UID COUNT`.

The machine's own /etc/passwd is not changed, so nothing of it is left if a test is killed. The namespace exists until standard input
ends.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from jupyter_gpuckpt.host import criu_program
from tests import uids
from tests.as_user import CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE, ROOT, mount, open_folders
from tests.programs import python_module


def name_of(number: int) -> str:
    """Return the name of a user."""
    return f"user{number:02}"


class UserAccounts:
    """Accounts with homes in `folder`, and the mount namespace that has them. Use as a context manager, as root."""

    def __init__(self, folder: Path, count: int) -> None:
        self.homes, self.names = folder / "home", [name_of(number) for number in range(count)]
        self._uids = range(uids.first(), uids.first() + count)
        self.homes.mkdir()
        folder.chmod(0o711)  # users reach their homes
        words = [str(folder), str(self._uids.start), str(count)]
        self._process = subprocess.Popen(
            [*python_module("tests.engines.user_accounts"), *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        for uid in self._uids:
            uids.remove("/tmp", f"gpuckpt-{uid}")

    @property
    def prefix(self) -> list[str]:
        """Return the beginning of a command that runs another one where the accounts are seen."""
        return ["nsenter", f"--target={self._process.pid}", "--mount", "--wd=."]


def main(folder: Path, first: int, count: int) -> None:
    """Make the accounts in a mount namespace, and wait for the end of standard input."""
    criu = criu_program.find()
    assert criu is not None, "there is no CRIU"
    passwd, group = Path("/etc/passwd").read_text(), Path("/etc/group").read_text()
    for number in range(count):
        name, uid = name_of(number), first + number
        home = folder / "home" / name
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
        passwd += f"{name}:x:{uid}:{uid}::{home}:/bin/bash\n"
        group += f"{name}:x:{uid}:\n"
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        sys.exit("a mount namespace is needed: run it as root")
    mount("none", "/", "none", MS_SLAVE | MS_REC)
    open_folders([Path(sys.base_prefix).resolve(), criu.resolve().parent, ROOT])
    for file, text in (("passwd", passwd), ("group", group)):
        (folder / file).write_text(text)
        mount(str(folder / file), f"/etc/{file}", "none", MS_BIND)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
