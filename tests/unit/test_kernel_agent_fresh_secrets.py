"""The agent's part of new secrets in a copy of a kernel; that of the engine is in tests/snapshots."""

import multiprocessing.process
import os
import subprocess
import sys
import tempfile
from multiprocessing import resource_sharer

import pytest

from jupyter_gpuckpt.kernel_agent import fresh_secrets
from jupyter_gpuckpt.kernel_agent.fresh_secrets import FreshSecrets

candidate_names = tempfile.__dict__["_get_candidate_names"]


@pytest.fixture
def copied(monkeypatch, tmp_path):
    """Return a function that makes this process another copy, as the daemon tells it."""
    file = tmp_path / "copy"
    file.write_bytes(bytes(8))
    monkeypatch.setattr(fresh_secrets, "_COPY", str(file))
    return lambda: file.write_bytes(os.urandom(8))


@pytest.fixture
def own():
    """Return this process as multiprocessing knows it; its key is put back."""
    process = multiprocessing.process.current_process()
    before = process.authkey
    process.authkey = os.urandom(32)
    yield process
    process.authkey = before


def test_names_of_temporary_files_come_from_another_sequence(monkeypatch, copied):
    monkeypatch.setattr(tempfile, "_name_sequence", None)
    before = candidate_names()
    FreshSecrets().renew()
    assert candidate_names() is not before


def test_the_key_of_multiprocessing_is_new_in_a_copy(copied, own):
    secrets, before = FreshSecrets(), own.authkey
    secrets.renew()
    assert own.authkey == before  # it was suspended and resumed
    copied()
    secrets.renew()
    second = own.authkey
    assert second != before
    assert len(second) == len(before)
    secrets.renew()
    assert own.authkey == second


def test_the_key_stays_where_children_have_it(copied, own, monkeypatch):
    secrets, before = FreshSecrets(), own.authkey
    monkeypatch.setattr(multiprocessing.process, "active_children", lambda: [object()])
    copied()
    secrets.renew()
    assert own.authkey == before


@pytest.mark.parametrize("chosen", [b"known to others", b"thirty-two letters, told by phone"[:32]])
def test_a_key_that_a_user_has_chosen_stays(copied, own, chosen):
    secrets, own.authkey = FreshSecrets(), chosen
    copied()
    secrets.renew()
    assert own.authkey == chosen


def test_files_are_passed_to_processes_that_begin_in_a_copy(copied, own):
    """Their key is the new one, and the thread that passes files began with the old one."""
    reader, writer = os.pipe()
    try:
        passed = resource_sharer.DupFd(writer)
        secrets = FreshSecrets()
        copied()
        secrets.renew()
        with open(passed.detach(), "wb") as file:
            file.write(b"passed")
        assert os.read(reader, 10) == b"passed"
    finally:
        resource_sharer.stop(timeout=5)
        for descriptor in (reader, writer):
            os.close(descriptor)


def test_what_is_not_loaded_is_not_loaded():
    code = (
        "import sys; from jupyter_gpuckpt.kernel_agent.fresh_secrets import FreshSecrets; before = {*sys.modules}; "
        "FreshSecrets().renew(); assert {*sys.modules} == before, {*sys.modules} - before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_fails_is_named(monkeypatch, copied):
    monkeypatch.setitem(sys.modules, "uuid_utils", object())
    secrets = FreshSecrets()
    secrets.renew()
    assert secrets.not_renewed == ["uuid_utils"]


#: Prints an identifier drawn in each of two copies of its process, which the library does not notice: Python knows nothing of them.
COPIES = """
import ctypes, os, sys, uuid_utils
from jupyter_gpuckpt.kernel_agent.fresh_secrets import FreshSecrets
secrets = FreshSecrets()
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
    for renew in ("pass", "secrets.renew()"):
        words = [sys.executable, "-c", COPIES.format(renew=renew)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        drawn[renew] = len(set(done.stdout.split()))
    assert drawn == {"pass": 1, "secrets.renew()": 2}
