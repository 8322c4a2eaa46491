"""A mount namespace in which a folder is read-only: `python -m tests.templates.read_only FOLDER`; it exists until standard input ends."""

import ctypes
import sys

from tests.as_user import CLONE_NEWNS, MS_BIND, MS_REC, MS_SLAVE, mount

MS_RDONLY, MS_REMOUNT = 1, 32

if __name__ == "__main__":
    folder = sys.argv[1]
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        sys.exit("a mount namespace is needed: run it as root")
    mount("none", "/", "none", MS_SLAVE | MS_REC)
    mount(folder, folder, "none", MS_BIND)
    mount("none", folder, "none", MS_BIND | MS_REMOUNT | MS_RDONLY)
    print("ready", flush=True)
    sys.stdin.read()
