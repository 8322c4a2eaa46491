"""The journal of a batch run, as the kernel writes it and a runner reads it."""

from contextlib import closing

import pytest
from jupyter_client.session import Session

from jupyter_gpuckpt.headless.journal_reader import JournalReader, Rewound
from jupyter_gpuckpt.kernel_agent import message_journal as writing
from jupyter_gpuckpt.kernel_agent.message_journal import Journal
from jupyter_gpuckpt.wire.message_log import frames
from tests.conftest import wait_for
from tests.full_disks import empty, fill, small_disk


def said(text):
    session = Session(key=b"k")
    return [b"topic", *session.serialize(session.msg("stream", {"text": text}))]


def opened(path):
    journal = Journal()
    assert journal.opened({"path": str(path)})["trouble"] == ""
    return journal


def texts(path):
    reader, found = JournalReader(path), []
    reader.look()
    while message := reader.take("iopub"):
        found.append(message["content"]["text"])
    reader.close()
    return found


def copy_of(journal, path):
    """Return the journal as it is in a kernel that was resumed from a snapshot of this moment."""
    made = opened(path)
    made._count, made._end, made._kept = journal._count, journal._end, journal._kept[:]
    return made


def test_it_is_an_output_log_with_numbers(tmp_path):
    path = tmp_path / "journal"
    journal = opened(path)
    journal.add(b"iopub", said("one"))
    journal.add(b"iopub", said("two"))
    assert [number for number, _ in frames(path)] == [1, 2]
    assert texts(path) == ["one", "two"]


def test_it_is_cut_where_the_memory_of_a_resumed_kernel_ends_and_its_reader_notices(tmp_path):
    path = tmp_path / "journal"
    journal = opened(path)
    journal.add(b"iopub", said("one"))
    saved = copy_of(journal, tmp_path / "other")
    journal.add(b"iopub", said("lost"))
    with closing(JournalReader(path)) as reader:
        assert reader.look()
        saved.opened({"path": str(path)})
        with pytest.raises(Rewound):
            reader.look()
    saved.add(b"iopub", said("again"))
    assert texts(path) == ["one", "again"]


def test_it_is_written_anew_on_another_machine(tmp_path):
    journal = opened(tmp_path / "journal")
    journal.add(b"iopub", said("one"))
    elsewhere = tmp_path / "elsewhere" / "journal"
    assert journal.opened({"path": str(elsewhere)})["trouble"] == ""
    journal.add(b"iopub", said("two"))
    assert texts(elsewhere) == ["one", "two"]


def test_one_that_is_too_large_for_memory_says_so_on_another_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "MAX_KEPT_BYTES", 1000)
    journal = opened(tmp_path / "journal")
    journal.add(b"iopub", said("x" * 1000))
    assert "too large" in journal.opened({"path": str(tmp_path / "elsewhere")})["trouble"]
    assert journal.opened({"path": str(tmp_path / "journal")})["trouble"] == ""


def test_what_could_not_be_written_is_written_with_the_next_message(tmp_path):
    path = tmp_path / "journal"
    journal = opened(path)
    journal.add(b"iopub", said("one"))
    folder = tmp_path / "away"
    path.rename(folder)
    path.mkdir()  # a journal cannot be written to a folder
    journal.add(b"iopub", said("two"))
    path.rmdir()
    folder.rename(path)
    journal.add(b"iopub", said("three"))
    assert texts(path) == ["one", "two", "three"]


def test_a_request_that_comes_twice_is_executed_once(tmp_path):
    journal = opened(tmp_path / "journal")
    assert journal.is_new("a")
    assert not journal.is_new("a")
    assert Journal().is_new("a")


def test_a_frame_that_is_not_whole_is_waited_for(tmp_path):
    path = tmp_path / "journal"
    opened(path).add(b"iopub", said("one"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with closing(JournalReader(path)) as reader:
        assert not reader.look()
        with path.open("ab") as file:
            file.write(whole[-1:])
        assert reader.look()


def test_what_found_no_room_is_written_when_there_is_room_without_another_message(tmp_path):
    with small_disk(tmp_path / "disk", tmp_path / "image", megabytes=4) as disk:
        path = disk / "journal"
        journal = opened(path)
        journal.add(b"iopub", said("one"))
        fill(disk)
        journal.add(b"iopub", said("2" * 10_000))
        assert texts(path) == ["one"]
        empty(disk)
        wait_for(lambda: texts(path) == ["one", "2" * 10_000])
