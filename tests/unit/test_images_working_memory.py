"""A save and a resume stay below the memory that they may work with."""

import json
import subprocess
import sys

import pytest

from jupyter_gpuckpt.images.working_memory import fitting

MB = 1 << 20
# What Python's memory management keeps.
SLACK = 8 * MB
# The peak of VmRSS is reset before each half; the data are in files, whose pages do not count.
WORK = """
import json, os, sys
from pathlib import Path
from jupyter_gpuckpt.images.pack import FileSource, pack
from jupyter_gpuckpt.images.unpack import FileSink, Unpacking
from jupyter_gpuckpt.wire.progress import Progress
from jupyter_gpuckpt.store.local import LocalStore

folder, memory_bytes, threads = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

def of_status(name):
    return next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith(name))

def grown(work):
    Path("/proc/self/clear_refs").write_text("5")
    before = of_status("VmRSS:")
    result = work()
    return of_status("VmHWM:") - before, result

with LocalStore(folder / "store") as store:
    options = {"threads": threads, "memory_bytes": memory_bytes}
    source, progress = FileSource("a", folder / "data"), Progress()
    saving, packed = grown(lambda: pack([source], store, progress=progress, **options))
    sink = FileSink(folder / "back")
    jobs = [(packed.streams[0], sink)]
    resuming, _ = grown(lambda: Unpacking(jobs, store, **options).run(progress))
assert (folder / "back").read_bytes() == (folder / "data").read_bytes()
print(json.dumps([saving, resuming]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with data, half noise and half numbers, that fill all buffers and the packs."""
    folder = tmp_path_factory.mktemp("memory")
    code = (
        "import numpy, os, sys; r = numpy.random.default_rng(1)\n"
        "with open(sys.argv[1], 'wb') as f:\n"
        "    for _ in range(6): f.write(r.bytes(8 << 20) + r.normal(size=1 << 20).tobytes())"
    )
    subprocess.run([sys.executable, "-c", code, folder / "data"], check=True)
    return folder


@pytest.mark.parametrize("bound", [24 * MB, 40 * MB])
def test_many_threads_stay_below_the_bound(folder, tmp_path, bound):
    (tmp_path / "data").symlink_to(folder / "data")
    command = [sys.executable, "-c", WORK, tmp_path, str(bound), "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    saving, resuming = json.loads(done.stdout)
    assert saving < bound + SLACK
    assert resuming < bound + SLACK


def test_pieces_become_smaller_before_threads_become_fewer():
    def fit(memory_bytes: int) -> tuple[int, int]:
        return fitting(8, 16, min_bytes=2, beside_bytes=4, memory_bytes=memory_bytes)

    assert fit(160) == (8, 16)
    assert fit(159) == (8, 8)
    assert fit(48) == (8, 2)
    assert fit(47) == (7, 2)
    assert fit(1) == (1, 2)


def test_a_quarter_of_what_is_free_is_enough_for_all_threads_here():
    assert fitting(4, 16, min_bytes=2, beside_bytes=4, memory_bytes=0) == (4, 16)
