"""Libraries that are replaced or removed while a program uses them, or while it is suspended."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from jupyter_gpuckpt.errors import HostIncompatible
from tests.conftest import left_in

#: `value` counts in a writable page of the library, `constant` reads one that is loaded only when it is used.
LIBRARY = """
    int count = 7;
    int value(void) {{ return ++count; }}
    const char large[400000] = {{1, 2, 3}};
    int constant(int i) {{ return large[i] + {addend}; }}
"""
USER = """
    import ctypes, os, time
    library = ctypes.CDLL({path!r})
    while True:
        constant = library.constant(2) if os.path.exists("use") else 0
        print(library.value(), constant, flush=True)
        time.sleep(0.01)
"""


def compiled(path: Path, *options: str, addend: int = 0) -> Path:
    path.parent.mkdir(exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-O0", *options, "-o", path, "-x", "c", "-"]
    subprocess.run(command, input=LIBRARY.format(addend=addend).encode(), check=True)
    return path


def moved_aside_and_deleted(library: Path) -> None:
    """Replace a library as `pip install -U` does."""
    aside = library.parent.with_name("~package")
    library.parent.rename(aside)
    compiled(library, addend=1)
    shutil.rmtree(aside)


def renamed_over(library: Path) -> None:
    compiled(library.with_name("new.so"), addend=1).replace(library)


def deleted_with_its_directory(library: Path) -> None:
    shutil.rmtree(library.parent)


@pytest.mark.parametrize("linked", [False, True], ids=["own file", "hard link"])
@pytest.mark.parametrize(
    "change", [moved_aside_and_deleted, renamed_over, deleted_with_its_directory]
)
def test_a_library_that_was_replaced_under_a_live_program_comes_back(run, tmp_path, change, linked):
    library = compiled(tmp_path / "package" / "library.so")
    if linked:  # as installers that keep a cache do
        os.link(library, tmp_path / "cached.so")
    program = run(USER.format(path=str(library)))
    program.lines(more_than=3)
    change(library)
    before = sorted(path.name for path in tmp_path.rglob("*") if "store" not in path.parts)
    for _ in range(2):
        saved = program.save(stop=True)
        [warning] = saved.warnings
        assert "replaced or removed" in warning
        assert library.name in warning
        program.resume(saved.manifest.info.snapshot_id)
        program.fresh_line()
    (tmp_path / "program-0" / "use").touch()
    while program.fresh_line().split()[1] == "0":
        pass
    numbers = [int(line.split()[0]) for line in program.lines()]
    assert numbers == list(range(8, 8 + len(numbers)))
    assert program.lines()[-1].split()[1] == "3"
    after = {path.name for path in tmp_path.rglob("*") if not {"store", "spill"} & {*path.parts}}
    assert after - set(before) <= {"use", "exit-1", "exit-2", "exit-3"}
    assert left_in(tmp_path / "spill") == set()


@pytest.mark.parametrize("option", ["-Wl,--build-id=none", "-Wl,--build-id=0x1234"])
def test_another_library_of_the_same_size_is_refused_and_the_same_one_is_not(run, tmp_path, option):
    library = compiled(tmp_path / "package" / "library.so", option)
    program = run(USER.format(path=str(library)))
    program.lines(more_than=3)
    saved = program.save(stop=True).manifest
    [mapped] = [file for file in saved.mapped if file.path == str(library)]
    assert mapped.digest
    other = compiled(tmp_path / "other.so", option, addend=1)
    assert other.stat().st_size == library.stat().st_size
    original = library.rename(tmp_path / "original.so")
    other.rename(library)
    with pytest.raises(HostIncompatible, match=r"library\.so.*was replaced"):
        program.resume(saved.info.snapshot_id)
    # Installed again: another file with the same content.
    library.unlink()
    shutil.copyfile(original, library)
    library.chmod(original.stat().st_mode)
    program.resume(saved.info.snapshot_id)
    program.fresh_line()
