"""Make snapshots of real programs for `test_snapshots.py`.

Run it as root from the project's root, on a machine with CRIU:

    unshare --uts sh -c 'hostname golden; exec python -m tests.compat.make 0.1.0'

It writes the folder tests/compat/<version> anew; with `records` at the end only what is no snapshot. Once a version is released, its
folder never changes any more: snapshots that users have do not change either.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec

from jupyter_gpuckpt.client.agent_code import installation
from jupyter_gpuckpt.engine.settings import EngineSettings
from jupyter_gpuckpt.host import doctor_report
from jupyter_gpuckpt.images.unpack import read_stream
from jupyter_gpuckpt.snapshots.save import save
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.manifest_records import Cause, Manifest, SaveOptions
from jupyter_gpuckpt.wire.progress import Progress
from tests.compat.programs import HERE, KINDS, asked, launched, scripted_gpu
from tests.compat.records import KEPT, enumerated, filled, kind_of


def main(version: str) -> None:
    """Write the archive of this version's snapshots, and what is to be found after a resume."""
    ctypes.CDLL(None).prctl(
        36, 1, 0, 0, 0
    )  # PR_SET_CHILD_SUBREAPER: the trees are to be found below this process
    criu = doctor_report.find_criu()
    assert criu is not None, "run tools/install-criu"
    known: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="compat-", dir="/tmp") as path:
        settings = EngineSettings(criu=criu, spill_dir=Path(path) / "spill", threads=2)
        with LocalStore(Path(path) / "store") as store:
            for name in KINDS:
                known[name] = _suspended(name, store, settings, Path(path))
        (HERE / version).mkdir(exist_ok=True)
        with tarfile.open(HERE / version / "snapshots.tar", "w") as archive:
            for file in sorted((Path(path) / "store").glob("*/*")):
                archive.add(file, str(file.relative_to(Path(path) / "store")), filter=_of_nobody)
    (HERE / version / "expected.json").write_text(json.dumps(known, indent=1) + "\n")


def write_records(version: str) -> None:
    """Write one of each record, with the values of the enumerations in it, and what runs in a kernel."""
    (HERE / version / "agent.txt").write_text(installation() + "\n")
    known = {
        name: {"record": filled(kind_of(name)), "values": enumerated(kind_of(name))}
        for name in KEPT
    }
    (HERE / version / "records.json").write_text(json.dumps(known, indent=1) + "\n")


def _suspended(name: str, store: LocalStore, settings: EngineSettings, folder: Path) -> object:
    """Suspend a program; return what is known of it."""
    kind = KINDS[name]
    with ExitStack() as stack:
        driver = stack.enter_context(scripted_gpu()) if name == "gpu" else None
        tree, spec = stack.enter_context(launched(settings, folder, kind))
        known = None if driver else asked(tree)
        options = SaveOptions(stop=True, name=name, cause=Cause.MANUAL)
        saved = save(tree, spec, store, settings, options, progress=Progress())
        _check_says_nothing(saved.manifest, store)
        return driver.memory()._asdict() if driver else known


def _check_says_nothing(manifest: Manifest, store: LocalStore) -> None:
    """Fail if something of this machine is in a snapshot that everybody gets."""
    content = b"".join(read_stream(stream, store) for stream in manifest.streams)
    content += msgspec.json.encode(manifest)
    for word in (HERE.parents[1], Path.home()):
        assert f"{word}/".encode() not in content, word
    assert manifest.info.host_name == "golden", "it is to be run as is said above"


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    return member.replace(mtime=0, uid=0, gid=0, uname="", gname="", deep=False)


if __name__ == "__main__":
    if sys.argv[2:] != ["records"]:
        main(sys.argv[1])
    write_records(sys.argv[1])
