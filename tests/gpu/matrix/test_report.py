"""The page of the matrix out of lines that several workers wrote."""

from __future__ import annotations

import pytest

from tests.gpu.matrix import lines, report
from tests.gpu.matrix.rows import ROWS

MACHINE = {"GPU": "NVIDIA H200", "Driver": "580.1", "CUDA": "13.0"}


def line(row, outcome="works", reason="", time=0.0, **known):
    return lines.Line(
        row, f"Title of {row}", 1, outcome, reason, time=time, machine=MACHINE, **known
    )


def test_lines_are_appended_and_read_again(tmp_path, monkeypatch, capsys):
    path = tmp_path / "lines.jsonl"
    monkeypatch.setenv(lines.VARIABLE, str(path))
    for outcome in ("works", "fails"):
        lines.keep(line("cupy", outcome, seconds={"save": [1.5]}, gpu_bytes=2_000_000_000))
    assert [(read.row, read.outcome) for read in lines.read(path)] == [
        ("cupy", "works"),
        ("cupy", "fails"),
    ]
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    assert "save [1.5]; 2.00 GB on the GPU" in printed[0]


def test_the_page_shows_the_latest_of_each_row_in_the_order_of_the_rows():
    found = report.page(
        [
            line("managed_memory", "refused", "It uses managed memory."),
            line("jax", "fails", "Gone.", time=1.0),
            line(
                "jax",
                time=2.0,
                seconds={"save": [0.5, 1.26]},
                gpu_bytes=1_300_000_000,
                ferry_bytes=5 * 10**8,
            ),
            line("cupy", time=1.0),
            line("cupy", "not run", "cupy is not installed", time=2.0),
            line("torch_compile", "not run", "Triton needs a C compiler"),
            line("numpy"),
        ]
    )
    table = [text for text in found.splitlines() if text.startswith("| Title")]
    assert table == [
        "| Title of torch_compile | 1 | not run |  |  |  |  |  |  |",
        "| Title of cupy | 1 | works |  |  |  |  |  |  |",
        "| Title of jax | 1 | works | 1.3 s |  |  |  | 1.3 GB | 0.5 GB |",
        "| Title of managed_memory | 1 | refused, runs on |  |  |  |  |  |  |",
    ]
    assert "Run on 1970-01-01: GPU NVIDIA H200, Driver 580.1, CUDA 13.0." in found
    assert "- Title of managed_memory: It uses managed memory." in found
    assert "Gone." not in found


def test_every_row_has_a_name_of_its_own_and_every_outcome_a_word():
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    assert set(report.MARKS) == {"works", "refused", "fails", "not run"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_names_work_that_exists(row):
    assert (report.Path(__file__).parent / "workloads" / f"{row.workload}.py").is_file()
