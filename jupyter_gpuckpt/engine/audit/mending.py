"""Mending of a restored tree before its tasks are let go: its facts are read, compared, and set again where they can be set."""

from __future__ import annotations

import logging
from contextlib import ExitStack

import msgspec

from ...host import processes
from ..injection.threads_held import ThreadsHeld
from ..tree.launch import pids
from ..tree.tree import Tree
from . import reading
from .comparison import differences
from .records import Facts, decoded

logger = logging.getLogger(__name__)


def mend(tree: Tree, data: bytes) -> list[str]:
    """Compare the restored tree with the facts of its snapshot, set what can be set; return warnings of the rest. It never fails."""
    if not data:
        return []
    try:
        before = decoded(data)
        after = _read(tree)
    except (msgspec.DecodeError, OSError) as error:
        logger.warning("the audit was skipped: %s", error)
        return []
    return [str(one) for one in differences(before, after)]


def _read(tree: Tree) -> Facts:
    answers: reading.Answers = {}
    members = [pid for pid in pids(tree) if processes.state(pid) not in (None, "Z", "X")]
    for pid in members:
        with ExitStack() as stack:
            answers |= reading.ask(stack.enter_context(ThreadsHeld(pid)))
    return reading.read(
        members, answers, {pid: sorted(processes.descriptors(pid)) for pid in members}
    )
