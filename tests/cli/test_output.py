"""What the commands print: sizes, ages, tables, errors, the progress bar."""

import io
import json
import time

import pytest

from jupyter_gpuckpt.cli import actions, app, printing, show_command, summary
from jupyter_gpuckpt.errors import ConfigurationError
from jupyter_gpuckpt.wire.manifest_records import Sizes, SnapshotInfo, Variable
from jupyter_gpuckpt.wire.progress import ProgressRecord
from jupyter_gpuckpt.wire.protocol import Operation, OperationKind, OperationState, Result
from jupyter_gpuckpt.wire.snapshot_records import Snapshot


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (1_234_567_890, "1.2 GB"),
        (5 * 10**15, "5000.0 TB"),
    ],
)
def test_sizes_read_as_people_write_them(count, text):
    assert printing.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "just now"),
        (59, "just now"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (7200, "2 h ago"),
        (86400, "1 day ago"),
        (10 * 86400, "10 days ago"),
    ],
)
def test_ages_name_the_largest_unit(seconds, text):
    assert printing.age(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.154, "0.15 s"), (12.34, "12.3 s"), (245, "4 min 05 s")]
)
def test_durations_keep_the_digits_that_matter(seconds, text):
    assert printing.duration(seconds) == text


def test_short_ids_are_long_enough_to_differ():
    assert printing.short_ids(["aaaaaaaa-1", "bbbbbbbb-1"]) == {
        "aaaaaaaa-1": "aaaaaaaa",
        "bbbbbbbb-1": "bbbbbbbb",
    }
    assert set(printing.short_ids(["aaaaaaaa-1", "aaaaaaaa-2"]).values()) == {
        "aaaaaaaa-1",
        "aaaaaaaa-2",
    }
    assert printing.short_ids([]) == {}
    assert printing.short_ids(["", "abc"]) == {"": "", "abc": "abc"}


def test_columns_are_aligned_left_or_right():
    rows = [["a.ipynb", "1.2 GB"], ["long name.ipynb", "12.0 GB"]]
    text = printing.table(["NAME", "MEMORY"], rows, right=["MEMORY"])
    assert text.splitlines() == [
        "NAME              MEMORY",
        "a.ipynb           1.2 GB",
        "long name.ipynb  12.0 GB",
    ]


def test_wide_letters_take_two_columns():
    first, second = printing.table(["N", "X"], [["分析", "a"]]).splitlines()
    assert first == "N     X"
    assert second == "分析  a"


def test_names_cannot_command_the_terminal():
    assert "\x1b" not in printing.table(["N"], [["a\x1b[2Jb\n"]])
    assert printing.printable("ü\x1b[2J") == "ü?[2J"


def test_a_progress_line_tells_stage_share_bytes_and_time():
    line = printing.progress_line("saving", ProgressRecord("pages", 10**9, 2 * 10**9, 1.25))
    assert line == "saving  pages  [############............]  50%  1.0 GB of 2.0 GB  1.2 s"
    assert printing.progress_line("saving", ProgressRecord("freeze")) == "saving  freeze  0.0 s"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_is_drawn_on_a_terminal_and_leaves_nothing_behind():
    terminal = Terminal()
    with printing.ProgressBar("saving", terminal) as bar:
        bar.show(ProgressRecord("pages", 1, 2, 0.1))
    drawn = terminal.getvalue()
    assert "pages" in drawn
    assert "\n" not in drawn
    assert drawn.endswith("\r\x1b[K")


def test_the_bar_is_silent_elsewhere():
    file = io.StringIO()
    with printing.ProgressBar("saving", file) as bar:
        bar.show(ProgressRecord("pages", 1, 2, 0.1))
    assert file.getvalue() == ""


def test_an_error_is_message_details_and_hint_for_people(capsys):
    printing.fail(ConfigurationError("No.", hint="Do this.", details="a\nb"), as_json=False)
    assert capsys.readouterr() == ("", "No.\n  a\n  b\nHint: Do this.\n")


def test_an_error_is_a_document_for_programs(capsys):
    printing.fail(ConfigurationError("No.", hint="Do this.", command="`this` does."), as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == {
        "message": "No.",
        "code": "configuration",
        "hint": "Do this.",
        "details": "",
        "command": "`this` does.",
    }
    assert err == ""


def operation(kind, **result):
    done = Result("snap", 0.9, **result)
    return Operation("op", kind, "kern", OperationState.SUCCEEDED, result=done)


def test_an_operation_is_told_in_a_sentence():
    sizes = Sizes(raw_bytes=2 * 10**9, new_bytes=3 * 10**8, gpu_bytes=10**9)
    saved = operation(OperationKind.SAVE, sizes=sizes, frozen_seconds=0.15)
    assert summary.of_operation(saved) == (
        "Saved kernel kern as snapshot snap in 0.90 s: 2.0 GB of memory, 1.0 GB of it on the GPU,"
        " 300.0 MB new in the store. The kernel was paused for 0.15 s."
    )
    with_notebook = operation(OperationKind.SAVE, notebook_modified=time.time() - 200)
    assert "outputs are those of the notebook's file, written 3 min ago." in summary.of_operation(
        with_notebook
    )
    resumed = operation(OperationKind.RESUME)
    assert summary.of_operation(resumed) == "Resumed kernel kern from snapshot snap in 0.90 s."
    assert "Suspended" in summary.of_operation(operation(OperationKind.SUSPEND, sizes=sizes))


def test_a_snapshot_is_told_in_a_line():
    info = SnapshotInfo("snap", "kern", 1000.0, "save", "a.ipynb", Sizes(raw_bytes=10**6))
    assert summary.of_snapshot(info, now=1120.0) == ("snap of a.ipynb, 2 min ago, 1.0 MB of memory")


def test_a_snapshot_is_shown_in_the_words_of_lists_without_control_characters():
    info = Snapshot(
        "s",
        "k",
        0.0,
        "save",
        "train.ipynb",
        sizes=Sizes(2_000_000, 500_000, 1500, 1_000_000),
        frozen_seconds=0.2,
        seconds=1.5,
        title="be\x1bfore",
        pinned=True,
        variables=[Variable("x", "int", 28, "41")],
    )
    record = {
        "host": {"name": "here", "kernel_release": "6.1", "driver_version": "", "gpus": []},
        "processes": [
            {"name": "keeper", "pid": 2, "parent": 1},
            {"name": "python3", "pid": 3, "parent": 2},
            {"name": "python3", "pid": 4, "parent": 3},
            {"name": "sh", "pid": 5, "parent": 2},
        ],
        "kept_files": ["/a", "/b"],
    }
    lines = list(show_command.of_snapshot(info, record, now=60.0))
    assert lines[:3] == [
        "Snapshot s",
        "  title     be?fore",
        "  kernel    train.ipynb (k, ended)",
    ]
    assert lines[3].endswith(" (1 min ago), by save")
    assert lines[4:] == [
        "  memory    2.0 MB, 1.0 MB of it on the GPU",
        "  on disk   500.0 kB, 1.5 kB of it new then",
        "  took      1.50 s; the kernel was paused for 0.20 s",
        "  pinned    yes: no rule deletes it",
        "  processes 2 x python3, sh",
        "  files     /a, /b",
        "  machine   here, Linux 6.1",
        "\nIts largest variables:",
        "NAME  TYPE  SIZE  VALUE\nx     int   28 B  41",
    ]


def test_programs_get_unexpected_errors_as_json_too(capsys, monkeypatch):
    def fail(args):
        raise ZeroDivisionError("of a test")

    monkeypatch.setitem(actions.ACTIONS, "list", fail)
    assert app.main(["list", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["error"]["code"] == "internal"
    assert "Traceback" in printed.err
    with pytest.raises(ZeroDivisionError):
        app.main(["list"])
