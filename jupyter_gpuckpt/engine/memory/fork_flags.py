"""Clearing of the flags by which libraries notice a fork, so that each copy of a kernel draws new random numbers.

BoringSSL (in grpcio) and AWS-LC (in awscrt, and in programs written in Rust) keep the state of their generator in the process. They have
a page that Linux empties in a forked process (MADV_WIPEONFORK), whose first byte they set to 1; if it is 0, they seed themselves anew.
Two copies of a kernel would make the same keys without that where they do not mix in numbers of the processor. What else a program
keeps in memory of that kind stays as it was: the program itself goes on, not a child of it.
"""

from __future__ import annotations

from pathlib import Path

from ...host import processes
from ..criu import memory_images
from ..criu.images import PAGE
from ..injection import task_memory
from ..tree.launch import pids
from ..tree.tree import Tree

#: The content of a page that is nothing but a flag.
_FLAG = bytes([1]).ljust(PAGE, b"\0")
#: Linux joins neighboring pages to one area. A larger area has other content.
_MAX_AREA = 1 << 20


def clear(images: Path, tree: Tree) -> None:
    """Clear these flags in all processes of a restored tree whose tasks are stopped. Raises OSError."""
    areas = memory_images.wiped_on_fork(images)
    if not areas:
        return
    for pid in pids(tree):
        for start, end in areas.get(processes.nspid(pid) or 0, ()):
            for page in range(start, min(end, start + _MAX_AREA), PAGE):
                if task_memory.read(pid, page, PAGE) == _FLAG:
                    task_memory.write(pid, page, bytes(1))
