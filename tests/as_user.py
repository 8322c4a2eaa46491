"""Runs a command as an ordinary user, for root: `python -m tests.as_user pytest tests/snapshots`.

The user is one of the machine's (`GPUCKPT_TEST_USER`, a name or a number), or uid 65533 of nobody's, without a group,
capability or right. In a mount namespace of its own it can read the checkout, this Python and CRIU even where they lie in root's
home; its home is a new folder in /tmp that goes afterwards. What is written into the checkout would be root's: pytest runs
without its cache.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from jupyter_gpuckpt.host import criu_program

ROOT = Path(__file__).parent.parent
#: Belongs to nobody.
UID = 65533
#: Names a folder of the user's among the devices, for tests with files that look like GPUs.
DEVICES = "GPUCKPT_TEST_DEVICES"
#: What travels from root's environment to the user's: variables with these beginnings, and these.
KEPT_BEGINNINGS = ("GPUCKPT_", "JUPYTER_GPUCKPT_", "OMPI_")
#: mpi4py's Open MPI finds the machine's OpenCL drivers by it; its settings begin with OMPI_.
KEPT = ("OCL_ICD_FILENAMES",)
CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE = 0x20000, 0x1000, 0x4000, 0x80000


def ids() -> tuple[int, int]:
    """Return the user's uid and gid."""
    name = os.environ.get("GPUCKPT_TEST_USER")
    if not name:
        return UID, UID
    if name.isdigit():
        return int(name), int(name)
    found = pwd.getpwnam(name)
    return found.pw_uid, found.pw_gid


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """man 2 mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [text.encode() for text in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {target}: {os.strerror(number)}")


def open_folders(paths: list[Path]) -> None:
    """Lay folders over closed ones above these paths, in which nothing but what leads to the paths is to be seen."""
    for path in paths:
        for parent in [*reversed(path.parents), path]:
            if not parent.stat().st_mode & 0o001:
                break
        else:
            continue
        wanted = [one for one in paths if parent in one.parents]
        held = {one: os.open(one, os.O_PATH) for one in wanted}
        mount("none", str(parent), "tmpfs", 0, "mode=755")
        for one, descriptor in held.items():
            one.mkdir(parents=True, mode=0o755)
            mount(f"/proc/self/fd/{descriptor}", str(one), "none", MS_BIND | MS_REC)
            os.close(descriptor)


def main(words: list[str]) -> int:
    """Run the command; its exit status."""
    criu = criu_program.find()
    if criu is None:
        sys.exit("no CRIU was found: run tools/install-criu")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        sys.exit("a mount namespace is needed: run it as root")
    mount("none", "/", "none", MS_SLAVE | MS_REC)
    open_folders([Path(sys.base_prefix).resolve(), criu.resolve().parent, ROOT])
    uid, gid = ids()
    home = Path(tempfile.mkdtemp(prefix="gpuckpt-user-"))
    (home / "tmp").mkdir()
    devices = Path(tempfile.mkdtemp(prefix="nvidia-scripted-", dir="/dev"))
    for folder in (home, home / "tmp", devices):
        os.chown(folder, uid, gid)
    environment = {
        "HOME": str(home),
        "USER": "gpuckpt-user",
        "TMPDIR": str(home / "tmp"),
        "PATH": f"{Path(sys.executable).parent}:{criu.resolve().parent}:{os.environ['PATH']}",
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "PYTHONDONTWRITEBYTECODE": "1",
        DEVICES: str(devices),
        **{
            name: value
            for name, value in os.environ.items()
            if name in KEPT or name.startswith(KEPT_BEGINNINGS)
        },
    }
    try:
        return subprocess.run(
            words, env=environment, cwd=ROOT, user=uid, group=gid, extra_groups=[], check=False
        ).returncode
    finally:
        for folder in (home, devices):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
