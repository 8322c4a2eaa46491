"""Parts of the relay: which kernel belongs to a notebook, the journal's end, requests on disk, signatures."""

import json
import os
import platform
import time

import pytest
import zmq
from jupyter_client.session import Session

from jupyter_gpuckpt.kernel_agent import message_journal
from jupyter_gpuckpt.kernel_agent.message_journal import Journal
from jupyter_gpuckpt.relay.backend_import import BackendImport
from jupyter_gpuckpt.relay.event_loop import EventLoop
from jupyter_gpuckpt.relay.journal_tail import JournalTail, messages_between
from jupyter_gpuckpt.relay.kept_records import KeptFolder, KeptRecord, Position, belonging, surplus
from jupyter_gpuckpt.relay.kernel_table import KernelTable
from jupyter_gpuckpt.relay.notebook_files import identity_of, path_in
from jupyter_gpuckpt.relay.signed_messages import Author, Message, Signer, unlike_before
from jupyter_gpuckpt.relay.waiting_requests import WaitingRequests


def record(name, path, **others):
    return KeptRecord(name, name, "", "", "", str(path), identity_of(path), left_at=1.0, **others)


def written(path):
    path.write_text("{}")
    return path


def test_a_kernel_belongs_to_its_file_under_its_name_and_after_a_renaming(tmp_path):
    kept = [record("one", written(tmp_path / "one")), record("other", written(tmp_path / "other"))]
    assert belonging(kept, str(tmp_path / "one")).kernel_id == "one"
    (tmp_path / "one").rename(tmp_path / "new")
    assert belonging(kept, str(tmp_path / "new")).kernel_id == "one"
    assert belonging(kept, str(tmp_path / "one")) is None


def test_a_copy_a_replacement_and_a_second_name_are_other_notebooks(tmp_path):
    kept = [record("one", written(tmp_path / "one"))]
    assert belonging(kept, str(written(tmp_path / "copy"))) is None
    os.link(tmp_path / "one", tmp_path / "link")
    assert belonging(kept, str(tmp_path / "link")) is None
    (tmp_path / "link").unlink()
    (tmp_path / "one").unlink()
    # Its inode may be the same.
    assert belonging(kept, str(written(tmp_path / "one"))) is None


def test_a_kernel_of_before_a_restart_and_one_that_ends_come_back_only_when_asked_for(tmp_path):
    path = written(tmp_path / "one")
    kept = [record("one", path, is_before_restart=True), record("other", path, ends_at=2.0)]
    assert belonging(kept, str(path)) is None


def test_kernels_of_another_machine_with_the_same_home_are_left_alone(tmp_path):
    for host in (platform.node(), "another"):
        folder = KeptFolder(tmp_path / "sessions" / host)
        folder.make()
        folder.write(KeptRecord(host, host, "", "", "", left_at=1.0, host=host))
    unfinished = tmp_path / "sessions" / "unfinished"
    unfinished.mkdir()
    with zmq.Context() as context:
        backend = BackendImport(tmp_path, context, lambda event: None)
        for is_left in (True, False):
            table = KernelTable(tmp_path, EventLoop(), context, backend)
            table.load()
            assert [one.record.kernel_id for one in table] == [platform.node()]
            assert unfinished.exists() == is_left
            table.close()
            if is_left:
                os.utime(unfinished, (1, 1))
    assert (tmp_path / "sessions" / "another" / "session.json").exists()


def test_too_many_kernels_are_ended_those_without_a_notebook_first():
    now = time.time()
    kept = [
        KeptRecord(str(n), str(n), "", "", "", path, left_at=now - n)
        for n, path in enumerate(["/a", "", "/b", ""])
    ]
    assert [one.kernel_id for one in surplus(kept, 2, 1, now)] == ["3", "1"]
    assert [one.kernel_id for one in surplus(kept, 1, 1, now)] == ["3", "1", "2"]
    assert len(surplus(kept, 10, 0, now + 10)) == 4


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ('if x:\n    __vsc_ipynb_file__ = "/a/b.ipynb"\n', "/a/b.ipynb"),
        ("__vsc_ipynb_file__ = '/a/\\u00e9 \\'b.ipynb'", "/a/é 'b.ipynb"),
        ('__vsc_ipynb_file__ = r"/a/b.ipynb"', "/a/b.ipynb"),
        ('__vsc_ipynb_file__ = "a.ipynb"', ""),
        ("print(__vsc_ipynb_file__)", ""),
        ("x = 1", ""),
    ],
)
def test_the_notebook_is_found_in_the_code_of_the_editor(code, path):
    assert path_in(code) == path


def said(text):
    session = Session(key=b"k")
    return [b"topic", *session.serialize(session.msg("stream", {"text": text}))]


def taken(tail):
    found = []
    while (waiting := tail.peek()) is not None:
        found.append((waiting[0], waiting[2].content["text"]))
        tail.take()
    return found


def bounded(path):
    journal = Journal()
    assert journal.opened({"path": str(path), "received": 0})["trouble"] == ""
    return journal


def test_a_bounded_journal_loses_what_was_received_and_its_reader_goes_on(tmp_path):
    path = tmp_path / "journal"
    journal, tail = bounded(path), JournalTail(path, 0)
    for text in "abc":
        journal.add(b"iopub", said(text))
    assert taken(tail) == [(1, "a"), (2, "b"), (3, "c")]
    size = path.stat().st_size
    journal.opened({"path": str(path), "received": 2})
    assert path.stat().st_size < size
    journal.add(b"iopub", said("d"))
    assert taken(tail) == [(4, "d")]
    assert [message[0] for message in messages_between(path, 1, 9)] == [3, 4]
    tail.close()


def test_a_kernel_of_an_older_snapshot_begins_a_new_file_if_its_own_was_cut(tmp_path):
    path = tmp_path / "journal"
    journal, older = bounded(path), bounded(tmp_path / "other")
    for text in "abc":
        journal.add(b"iopub", said(text))
        if text == "b":
            older._path, older._count, older._end = str(path), journal._count, journal._end
            older._cut, older._inode = journal._cut, journal._inode
    journal.opened({"path": str(path), "received": 3})
    journal.add(b"iopub", said("d"))
    tail = JournalTail(path, 2)
    older.opened({"path": str(path), "received": 0})
    older.add(b"iopub", said("again"))
    assert taken(tail) == [(3, "again")]
    tail.close()


def test_a_kernel_of_an_older_snapshot_removes_what_it_has_not_said(tmp_path):
    path = tmp_path / "journal"
    journal, older = bounded(path), bounded(tmp_path / "other")
    journal.add(b"iopub", said("a"))
    older._path, older._count, older._end = str(path), journal._count, journal._end
    older._cut, older._inode = journal._cut, journal._inode
    journal.add(b"iopub", said("lost"))
    older.opened({"path": str(path), "received": 0})
    older.add(b"iopub", said("b"))
    tail = JournalTail(path, 0)
    assert taken(tail) == [(1, "a"), (2, "b")]
    tail.close()


def test_a_journal_that_nobody_cuts_loses_its_older_half(tmp_path, monkeypatch):
    monkeypatch.setattr(message_journal, "MAX_FILE_BYTES", 4000)
    path = tmp_path / "journal"
    journal = bounded(path)
    for number in range(100):
        journal.add(b"iopub", said(str(number)))
        assert path.stat().st_size <= 4000
    assert messages_between(path, 0, 1000)[-1][0] == 100


def test_a_journal_ends_with_its_relay_and_begins_anew_with_the_next(tmp_path):
    path, other = tmp_path / "journal", tmp_path / "other"
    journal = bounded(path)
    journal.add(b"iopub", said("one"))
    journal.keep_only(str(path))
    journal.add(b"iopub", said("two"))
    assert len(messages_between(path, 1, 9)) == 2
    journal.keep_only("")  # a server has the kernel
    size = path.stat().st_size
    journal.add(b"iopub", said("three"))
    assert not journal.is_kept
    assert journal.is_new("request")
    assert path.stat().st_size == size
    assert not journal.opened({"path": str(other), "received": 0})["trouble"]
    journal.add(b"iopub", said("four"))
    assert len(messages_between(other, 1, 9)) == 1


def test_requests_without_a_reply_outlive_the_relay(tmp_path):
    author, path = Author(), tmp_path / "requests"
    messages = [Message([b"client"], author.parts("execute_request", {"code": c})) for c in "abc"]
    ids = [message.header.msg_id for message in messages]
    requests = WaitingRequests(path)
    for message in messages:
        requests.add(message.header.msg_id, message)
    assert requests.remove(ids[1]) == messages[1]
    assert requests.remove(ids[1]) is None
    requests.close()
    with path.open("ab") as file:
        file.write(b"\x50\0\0\0cut off")
    again = WaitingRequests(path)
    assert list(again) == [messages[0], messages[2]]
    for request_id in ids:
        again.remove(request_id)
    assert not path.stat().st_size
    again.close()


def test_a_position_is_there_again(tmp_path):
    position = Position(tmp_path / "position")
    assert position.number == 0
    position.set(2**40)
    position.close()
    again = Position(tmp_path / "position")
    assert again.number == 2**40
    again.close()


def test_a_repeated_message_has_another_signature_each_time():
    signer = Signer("key", "hmac-sha256")
    made = {signer.sign([b"{}", b"{}", unlike_before(b"{}"), b"{}"]) for _ in range(3)}
    assert len(made) == 3
    assert json.loads(unlike_before(b'{"a": 1}')) == {"a": 1}


def test_messages_are_signed_as_jupyter_signs_them():
    session = Session(key=b"secret")
    frames = session.serialize(session.msg("execute_request", {"code": "1"}), ident=b"client")
    signer = Signer("secret", "hmac-sha256")
    message = signer.opened(frames)
    assert message.idents == [b"client"]
    assert message.content == {"code": "1"}
    assert signer.frames(message.idents, message.parts) == frames
    assert Signer("other", "hmac-sha256").opened(frames) is None
    assert signer.opened([b"no", b"delimiter"]) is None
