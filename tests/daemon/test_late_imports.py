"""What a daemon imports after its start, and when: never while a kernel stands still for a save."""

import subprocess
import sys

import pytest

from jupyter_gpuckpt.errors import ToolMissing
from jupyter_gpuckpt.wire import calls

#: Writes each module that the process imports, and whether any of its threads freezes a tree at that moment.
WITNESS = """
import os, sys

def freezes(frame):
    while frame is not None:
        code = frame.f_code
        # The module itself is imported before.
        if code.co_filename.endswith(("/engine/freeze.py", "/engine/park.py")) and code.co_name != "<module>":
            return True
        frame = frame.f_back
    return False

def note(event, arguments):
    if event == "import" and "jupyter_gpuckpt.daemon.service" in sys.modules:
        frozen = any(map(freezes, sys._current_frames().values()))
        os.write(target, f"{arguments[0]} {frozen}\\n".encode())

target = os.open(PATH, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
sys.addaudithook(note)
"""


@pytest.fixture
def imported(short_dir, monkeypatch):
    """Return a function that lists what the daemon has imported since its start, each with `True` if a tree was being frozen."""
    written = short_dir / "imported"
    folder = short_dir / "witness"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITNESS.replace("PATH", repr(str(written))))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return lambda: [line.split() for line in written.read_text().splitlines()]


def test_a_daemon_starts_without_numpy_and_the_engine():
    code = "import sys, jupyter_gpuckpt.daemon.app; print(*sys.modules)"
    started = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    modules = set(started.stdout.split())
    assert "jupyter_gpuckpt.daemon.service" in modules
    assert not modules & {
        "numpy",
        "jupyter_gpuckpt.engine.freeze",
        "jupyter_gpuckpt.snapshots.save",
    }


def test_a_first_save_imports_nothing_while_the_kernel_stands_still(imported, client, kernel):
    assert client.wait(client.send(calls.save(kernel.kernel_id)).operation_id).snapshot_id
    found = imported()
    assert {"numpy", "jupyter_gpuckpt.engine.freeze"} <= {name for name, _ in found}
    assert [name for name, frozen in found if frozen == "True"] == []


def test_no_kernel_runs_without_what_saves_need(imported, kernel):
    assert ["jupyter_gpuckpt.snapshots.save", "False"] in imported()


@pytest.fixture
def half_installed(short_dir, monkeypatch):
    """Let the daemon find a NumPy that cannot be imported."""
    (short_dir / "broken").mkdir()
    (short_dir / "broken/numpy.py").write_text("raise ImportError('half installed')")
    monkeypatch.setenv("PYTHONPATH", str(short_dir / "broken"))


def test_without_what_saves_need_no_kernel_is_started(half_installed, client, owner, spec):
    with pytest.raises(ToolMissing, match="cannot be imported: half installed"):
        client.send(calls.launch(owner.owner_id, spec()))
    assert client.send(calls.kernels()) == []


def test_after_an_upgrade_nothing_of_the_new_version_is_imported():
    code = """
import jupyter_gpuckpt.daemon.app
from jupyter_gpuckpt.wire import protocol
protocol.package_version()
protocol.metadata.version = lambda name: "99"
from jupyter_gpuckpt.daemon import late_imports
late_imports.load()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert "DaemonUnavailable: jupyter_gpuckpt was upgraded from" in done.stderr
    assert "to 99 while this gpuckptd ran without kernels." in done.stderr
