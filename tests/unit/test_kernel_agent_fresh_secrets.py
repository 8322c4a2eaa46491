"""The agent's part of new secrets in a copy of a kernel; that of the engine is in tests/snapshots."""

import multiprocessing.process
import subprocess
import sys
import tempfile

from jupyter_gpuckpt.kernel_agent.fresh_secrets import renew_secrets

candidate_names = tempfile.__dict__["_get_candidate_names"]


def test_names_of_temporary_files_come_from_another_sequence(monkeypatch):
    monkeypatch.setattr(tempfile, "_name_sequence", None)
    before = candidate_names()
    renew_secrets()
    assert candidate_names() is not before


def test_the_key_of_multiprocessing_is_new_unless_children_have_it(monkeypatch):
    own = multiprocessing.process.current_process()
    before = bytes(own.authkey)
    try:
        monkeypatch.setattr(multiprocessing.process, "active_children", lambda: [object()])
        renew_secrets()
        assert own.authkey == before
        monkeypatch.setattr(multiprocessing.process, "active_children", list)
        renew_secrets()
        assert own.authkey != before
        assert len(own.authkey) == len(before)
    finally:
        own.authkey = before


#: Prints an identifier drawn in each of two copies of its process, which the library does not notice: Python knows nothing of them.
COPIES = """
import ctypes, os, sys, uuid_utils
from jupyter_gpuckpt.kernel_agent.fresh_secrets import renew_secrets
uuid_utils.uuid4()
for _ in range(2):
    if ctypes.CDLL(None).fork() == 0:
        {renew}
        os.write(1, f"{{uuid_utils.uuid4()}}\\n".encode())
        os._exit(0)
    os.wait()
"""


def test_copies_draw_other_identifiers():
    drawn = {}
    for renew in ("pass", "renew_secrets()"):
        words = [sys.executable, "-c", COPIES.format(renew=renew)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        drawn[renew] = len(set(done.stdout.split()))
    assert drawn == {"pass": 1, "renew_secrets()": 2}
