"""The framework of the benchmarks: what is written, read back, judged, drawn and left out. They themselves are no tests."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import numpy as np
import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import cold_cache, machine, memory_kinds, reports, room, store, written_again
from tests.benchmarks.measured import Row, ratios
from tests.benchmarks.other_notebooks import NOTEBOOKS
from tests.benchmarks.reports import Report

pytestmark = pytest.mark.thorough

ROWS = [
    Row("ours", [1.0, 3.0, 2.0], budget=2.5, chart="times", series="ours", x=1.0),
    Row("ours", [4.0], budget=2.5, chart="times", series="ours", x=2.0),
    Row("theirs", [5.0, 6.0], chart="times", series="theirs", x=1),
    Row("kept", [7.0], "x", facts={"lost": "a thread"}, chart="bars", series="store", x="text"),
    Row("not drawn", [1.0]),
]


@pytest.fixture
def report() -> Report:
    return Report("sample", "A title", "command", reports.now(), 1.5, 0.5, machine.here(), ROWS)


def test_a_report_comes_back_from_its_file_as_it_was(report, tmp_path):
    folder = tmp_path / "made" / "for it"
    path = reports.write(report, folder)
    assert path == folder / "sample.json"
    assert [entry.name for entry in folder.iterdir()] == ["sample.json"]
    assert reports.read(path) == report
    found = json.loads(path.read_text())
    assert found["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert found["machine"]["linux"]


def test_a_file_that_is_no_report_is_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"name": "other"}')
    with pytest.raises(msgspec.ValidationError):
        reports.read(path)


def test_files_are_written_again_in_groups_that_fit_on_the_disk(tmp_path, monkeypatch):
    files = [tmp_path / str(number) for number in range(5)]
    for number, file in enumerate(files):
        file.write_bytes(os.urandom((5 << 20) + number))
    room_for_two = (11 << 20) + written_again._SPARE_BYTES
    usage = shutil.disk_usage(tmp_path)._replace(free=room_for_two)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(os, "sync", lambda: None)  # that of other programs may take minutes
    groups, write = [], written_again._write

    def writing(source, target):
        write(source, target)
        groups.append(target.parent)
        assert target.read_bytes() == source.read_bytes()

    monkeypatch.setattr(written_again, "_write", writing)
    assert written_again.seconds(files) > 0
    assert sorted(groups.count(group) for group in set(groups)) == [1, 2, 2]
    assert sorted(tmp_path.iterdir()) == files


def test_a_budget_bounds_the_median_from_above_or_from_below():
    assert ROWS[0].within
    assert not ROWS[1].within
    assert ROWS[2].within
    fast = msgspec.structs.replace(ROWS[1], at_least=True)
    assert fast.within
    assert not msgspec.structs.replace(fast, budget=4.5).within
    assert "within 2.50 s" in str(ROWS[0])
    assert "OVER 2.50 s" in str(ROWS[1])
    assert "within at least 2.50 s" in str(fast)
    assert str(ROWS[3]).endswith("lost: a thread")
    assert "OVER" not in str(ROWS[2])
    assert "within" not in str(ROWS[2])


def test_ratios_are_of_one_round_each():
    assert ratios([4.0, 9.0], [2.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_pictures_are_made_of_the_files(report, tmp_path):
    plots = pytest.importorskip("tests.benchmarks.plots")
    reports.write(report, tmp_path)
    bare = msgspec.structs.replace(report, name="bare", rows=[ROWS[-1]])
    reports.write(bare, tmp_path)
    (picture,) = plots.draw_all(tmp_path)
    assert picture == tmp_path / "sample.svg"
    text = " ".join(ET.parse(picture).getroot().itertext())
    for word in ("A title", "times", "bars", "ours", "theirs", "budget of ours", "text"):
        assert word in text
    assert "not drawn" not in text
    first = picture.read_bytes()
    plots.draw(report, tmp_path)
    assert picture.read_bytes() == first, "the same numbers make the same bytes"


def test_sizes_are_reduced_to_the_room_there_is(monkeypatch):
    monkeypatch.setattr(room.processes, "mem_available", lambda: 11 * room.GB)
    assert room.fitting([1.0, 4.0, 5.0], memory=2, disk=0) == [1.0, 4.0, 5.0]
    assert room.fitting([1.0, 4.0, 8.0], memory=2, disk=0) == [1.0, 4.0, 5.0]
    assert room.fitting([1.0, 4.9, 8.0], memory=2, disk=0) == [1.0, 4.9], "5 would say no more"
    assert room.fitting([8.0], memory=4, disk=0) == [2.5]
    with pytest.raises(room.Skipped, match=r"no room for 1 GB: 0.05? GB|no room for 1 GB: 0 GB"):
        room.fitting([1.0], memory=200, disk=0)
    with pytest.raises(room.Skipped):
        room.fitting([1.0], memory=0.1, disk=1e9)


@pytest.mark.parametrize("kind", memory_kinds.KINDS)
def test_a_kind_of_data_has_its_size_and_repeats_nothing(kind):
    memory = memory_kinds.fill(17 << 20, [kind])
    assert len(memory) == 32 << 20
    assert np.array_equal(memory, memory_kinds.fill(17 << 20, [kind]))
    first, second = memory.reshape(2, -1)
    pages = {page.tobytes() for page in first.reshape(-1, 4096) if page.any()}
    assert not any(page.tobytes() in pages for page in second.reshape(-1, 4096))


def test_a_file_that_is_pushed_out_of_memory_is_not_cached(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(8 << 20))
    path.read_bytes()
    assert cold_cache.cached(path) > 0.9
    try:
        cold_cache.evict([path])
    except AssertionError:
        pytest.skip("a file system that lies in memory")
    assert cold_cache.cached(path) < 0.1


def test_every_benchmark_can_be_imported_and_says_what_it_is():
    for name, module in command.BENCHMARKS.items():
        found = (Path(command.__file__).parent / f"{module}.py").read_text()
        assert found.startswith('"""'), name
        assert "\ndef run() -> Iterator[Row]:" in found, name


def test_what_cannot_run_here_is_no_failure_and_leaves_no_file(monkeypatch, tmp_path, capsys):
    def run():
        raise room.Skipped("there is none")
        yield

    _pretend(monkeypatch, run)
    assert command.main(["sample", "--to", str(tmp_path)]) == 0
    assert "skipped: there is none" in capsys.readouterr().out
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("rows", "status"), [(ROWS[:1], 0), (ROWS, 1)])
def test_the_exit_status_says_whether_budgets_were_kept(monkeypatch, tmp_path, rows, status):
    _pretend(monkeypatch, lambda: iter(rows))
    assert command.main(["sample", "--to", str(tmp_path)]) == status
    found = reports.read(tmp_path / "sample.json")
    assert found.rows == list(rows)
    assert found.command == "python -m tests.benchmarks sample"
    assert math.isfinite(found.seconds)


def _pretend(monkeypatch, run):
    """Register a benchmark "sample" that yields the rows of `run`."""
    monkeypatch.setattr(command, "BENCHMARKS", {"sample": "measured"})
    monkeypatch.setattr("tests.benchmarks.measured.run", run, raising=False)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_a_notebook_is_code(notebook):
    for code in [*notebook.cells, *notebook.rest.values()]:
        # Cells may await.
        compile(code, notebook.name, "exec", flags=0x2000)


def test_the_store_is_measured_whatever_its_size(monkeypatch):
    monkeypatch.setattr(store, "SIZES", [3000])
    rows = {row.name.strip(): row for row in store.run()}
    for name in (
        "first list",
        "first count of the space",
        "delete of many",
        "longest wait of a publish",
    ):
        assert rows[name].samples[0] > 0
