"""The agent's part of new secrets in a copy of a kernel; that of the engine is in tests/snapshots."""

import multiprocessing.process
import tempfile

from jupyter_gpuckpt.kernel_agent.fresh_secrets import renew_secrets


def test_names_of_temporary_files_come_from_another_sequence(monkeypatch):
    monkeypatch.setattr(tempfile, "_name_sequence", None)
    before = tempfile._get_candidate_names()
    renew_secrets()
    assert tempfile._get_candidate_names() is not before


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
