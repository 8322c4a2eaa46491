"""File systems of which a tree has files open, and whose servers do not answer: CRIU would wait for them while the tree stands still."""

from __future__ import annotations

import re

from ...errors import FreezeFailed
from ...host import commands, fuse
from .tree import Tree

#: The types of file systems that ask a server (man proc_pid_mountinfo).
_REMOTE = re.compile(r"fuse(\..*|blk)?|nfs4?|cifs|smb3|9p|ceph|afs|lustre|gpfs|beegfs")
#: Linux writes a blank in a name as \\040.
_ESCAPED = re.compile(r"\\([0-7]{3})")
_ANSWER_SECONDS = 5.0


def refuse(tree: Tree, members: list[int]) -> None:
    """Raise FreezeFailed if one of the file systems of which these processes have files open or mapped does not answer.

    Each is asked for its size by a program that can be left behind: Linux may not end it.
    """
    mounts = _remote_mounts(tree)
    for minor, file in fuse.files(members).items() if mounts else ():
        if minor in mounts and not _answers(tree, mounts[minor][0]):
            folder, kind = mounts[minor]
            raise FreezeFailed(
                f"The kernel has {file} open, and the file system at {folder} ({kind}) does not answer.",
                hint="Try again when its server answers. If it never will, unmount it by force (`umount --force --lazy`).",
                details=f"`stat --file-system` of {folder} did not end within {_ANSWER_SECONDS} s",
            )


def _remote_mounts(tree: Tree) -> dict[int, tuple[str, str]]:
    """Return folder and type of each mounted file system that asks a server, by the minor number of its device."""
    found = {}
    with open(f"/proc/{tree.init_pid}/mountinfo", errors="surrogateescape") as lines:
        for line in lines:
            mount, _, system = line.partition(" - ")
            kind = system.split()[0]
            if _REMOTE.fullmatch(kind):
                device, _, folder = mount.split()[2:5]
                folder = _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 8)), folder)
                found[int(device.split(":")[1])] = folder, kind
    return found


def _answers(tree: Tree, folder: str) -> bool:
    try:
        commands.run(
            ["stat", "--file-system", tree.inside(folder)], timeout=_ANSWER_SECONDS, check=False
        )
    except commands.CommandFailed as error:
        return not error.timed_out
    return True
