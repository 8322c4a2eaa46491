"""Working folders from snapshots of strangers, and folders in which somebody has put links: nothing outside is touched."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from jupyter_gpuckpt.engine.settings import EngineSettings
from jupyter_gpuckpt.errors import (
    CheckpointError,
    ConfigurationError,
    GpuCkptError,
    KernelStateConflict,
    ManifestInvalid,
)
from jupyter_gpuckpt.images.pack import BytesSource, pack
from jupyter_gpuckpt.snapshots.working_folder.folder_merges import merged
from jupyter_gpuckpt.snapshots.working_folder.folder_restores import FolderRestore
from jupyter_gpuckpt.snapshots.working_folder.folder_returns import Place, put_back
from jupyter_gpuckpt.snapshots.working_folder.folder_saves import FolderSave
from jupyter_gpuckpt.store import manifest_checks
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.folder_records import (
    CONTENT,
    STAGING,
    TABLE,
    FolderEntry,
    FolderRules,
    FolderTable,
    SavedFolder,
)
from jupyter_gpuckpt.wire.manifest_records import Cause, SnapshotInfo, Stream
from jupyter_gpuckpt.wire.progress import Progress
from jupyter_gpuckpt.wire.snapshot_order import Making
from tests.manifests import manifest_of

RULES = FolderRules(is_saved=True)


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "folder"
    made.mkdir()
    return made


@pytest.fixture
def outside(tmp_path):
    """Return a directory beside the folder, which has to stay as it is."""
    made = tmp_path / "outside"
    made.mkdir()
    (made / "victim").write_text("precious")
    yield made
    assert [path.name for path in made.iterdir()] == ["victim"]
    assert (made / "victim").read_text() == "precious"
    assert (made / "victim").stat().st_mode & 0o7777 == 0o644


@pytest.fixture
def settings(tmp_path):
    return EngineSettings(Path("/nowhere"), tmp_path / "spill", 2)


def snapshot_of(folder, entries, store, content=(), left_out=()):
    """Return a manifest with this table, as somebody may have made it."""
    table = msgspec.msgpack.encode(FolderTable(list(entries), list(left_out)))
    files = [BytesSource(str(number), one) for number, one in enumerate(content)]
    packed = pack([*files, BytesSource(TABLE, table)], store, threads=1, progress=Progress())
    *each, stored_table = packed.streams
    chunks = [chunk for one in each for chunk in one.chunks]
    streams = Stream(CONTENT, sum(map(len, content)), chunks), stored_table
    made = manifest_of(SnapshotInfo("evil", "k", 1.0, "save", has_files=True), *streams)
    return replace(
        made,
        launch=replace(made.launch, cwd=str(folder)),
        folder=SavedFolder(str(folder), 1, sum(map(len, content))),
    )


def restore(manifest, folder, store, settings, *, merges=False, rules=RULES):
    return put_back(
        manifest,
        manifest,
        Place("k", folder, str(folder), rules),
        STAGING + "test",
        store,
        settings,
        Progress(),
        merges=merges,
        making=Making("made", number=9),
        cause=Cause.ROLLBACK,
    )


@contextmanager
def saved(folder, store, settings, rules=RULES):
    saving = FolderSave(folder, str(folder), rules, store, settings)
    with saving.begun(Progress()):
        assert saving.is_saved, saving.warnings
        yield saving


def present(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


FILE = FolderEntry("file", "file", 0o644, 1, 4)
EVIL = {
    "above": [replace(FILE, path="../outside/victim")],
    "absolute": [replace(FILE, path="/tmp/victim")],
    "a dot": [replace(FILE, path="./file")],
    "an empty name": [replace(FILE, path="")],
    "a zero byte": [replace(FILE, path="a\0b")],
    "a long name": [replace(FILE, path="a" * 256)],
    "twice": [FILE, FILE],
    "below a link": [
        FolderEntry("link", "symlink", target="../outside"),
        replace(FILE, path="link/victim"),
    ],
    "below a file": [FILE, replace(FILE, path="file/below")],
    "below nothing": [replace(FILE, path="no/folder")],
    "setuid": [replace(FILE, mode=0o4755)],
    "a device": [replace(FILE, kind="device")],
    "a pipe": [replace(FILE, kind="fifo")],
    "a length below zero": [replace(FILE, length=-1)],
    "more content than there is": [replace(FILE, length=5)],
    "less content than there is": [replace(FILE, length=3)],
    "an endless length": [replace(FILE, length=1 << 62)],
    "a directory with content": [replace(FILE, kind="directory")],
    "a link to nothing": [FolderEntry("link", "symlink"), FILE],
    "a link with a zero byte": [FolderEntry("link", "symlink", target="a\0b"), FILE],
    "a time beyond all": [replace(FILE, mtime_ns=1 << 63)],
    "a hook of git": [FolderEntry(".git", "directory", 0o755), replace(FILE, path=".git/hook")],
    "a notebook": [replace(FILE, path="work.ipynb")],
    "our own directory": [replace(FILE, path=STAGING + "test")],
}


@pytest.mark.parametrize("entries", EVIL.values(), ids=EVIL)
def test_a_table_that_no_save_makes_is_refused(entries, folder, outside, store, settings):
    (folder / "kept").write_text("kept")
    try:
        evil = snapshot_of(folder, entries, store, [b"evil"])
    except (msgspec.ValidationError, OverflowError):
        return  # it cannot even be written
    with pytest.raises(ManifestInvalid, match="not valid"):
        restore(evil, folder, store, settings)
    assert present(folder) == {"kept": b"kept"}


def test_what_is_left_out_does_not_lie_elsewhere(folder, store, settings):
    evil = snapshot_of(folder, [FILE], store, [b"evil"], left_out=["../outside"])
    with pytest.raises(ManifestInvalid):
        restore(evil, folder, store, settings)


def test_a_table_of_damaged_bytes_is_refused(folder, store, settings):
    made = snapshot_of(folder, [FILE], store, [b"evil"])
    packed = pack([BytesSource(TABLE, os.urandom(99))], store, threads=1, progress=Progress())
    evil = replace(made, streams=[made.stream(CONTENT), *packed.streams])
    with pytest.raises(ManifestInvalid):
        restore(evil, folder, store, settings)


def test_a_manifest_for_another_folder_is_refused(folder, outside, store, settings):
    made = snapshot_of(folder, [FILE], store, [b"evil"])
    evil = replace(made, folder=replace(made.folder, path=str(outside)))
    assert "not the folder" in manifest_checks.problem_of(evil)
    with pytest.raises(ConfigurationError):
        restore(evil, folder, store, settings)
    evil = replace(made, folder=replace(made.folder, bytes=5))
    assert "not in it" in manifest_checks.problem_of(evil)


def test_nothing_is_written_through_links_that_are_there(folder, outside, store, settings):
    """The folder is another than at the snapshot: in place of a file and of a directory are links that lead out of it."""
    (folder / "deep").mkdir()
    (folder / "deep" / "victim").write_text("then")
    (folder / "victim").write_text("then")
    with saved(folder, store, settings) as saving:
        files = saving.finish(Progress())
        entries = [one.entry for one in saving.stored().files.values()]
    assert files is not None
    wanted = snapshot_of(folder, sorted(entries, key=lambda one: one.path), store, [b"then"] * 2)
    (folder / "deep" / "victim").unlink()
    (folder / "deep").rmdir()
    (folder / "deep").symlink_to(outside)
    (folder / "victim").unlink()
    (folder / "victim").symlink_to(outside / "victim")
    undo, _ = restore(wanted, folder, store, settings)
    assert not (folder / "deep").is_symlink()
    assert (folder / "deep" / "victim").read_text() == "then"
    assert (folder / "victim").read_text() == "then"
    undo.undo()
    assert (folder / "deep").readlink() == outside
    assert (folder / "victim").readlink() == outside / "victim"


def test_a_link_that_is_put_between_two_steps_leads_nowhere(
    folder, outside, store, settings, monkeypatch
):
    """Check that a restore undoes what it did when another program replaces a directory by a link meanwhile."""
    (folder / "deep").mkdir()
    (folder / "deep" / "victim").write_text("now")
    entries = [FolderEntry("deep", "directory", 0o755), replace(FILE, path="deep/victim")]
    wanted = snapshot_of(folder, entries, store, [b"evil"])
    take = FolderRestore._take

    def swapped(restoring, beneath, step):
        take(restoring, beneath, step)
        (folder / "deep").rename(folder / "aside")
        (folder / "deep").symlink_to(outside)

    monkeypatch.setattr(FolderRestore, "_take", swapped)
    with pytest.raises((CheckpointError, OSError)):
        restore(wanted, folder, store, settings)


def test_files_of_other_users_and_what_rules_leave_out_now_stay(folder, store, settings):
    entries = [replace(FILE, path="a"), replace(FILE, path="b")]
    wanted = snapshot_of(folder, entries, store, [b"then"] * 2)
    (folder / "a").write_text("now")
    (folder / "b").write_text("now")
    (folder / ".gitignore").write_text("a\n")
    undo, warnings = restore(wanted, folder, store, settings)
    assert (folder / "a").read_text() == "now"
    assert (folder / "b").read_text() == "then"
    assert "a stays as it is" in " ".join(warnings)
    undo.finish()
    assert present(folder).keys() == {"a", "b"}


def test_a_disk_error_in_the_middle_undoes_everything(folder, store, settings, monkeypatch):
    for name in "abc":
        (folder / name).write_text("now")
    wanted = snapshot_of(folder, [replace(FILE, path=name) for name in "abc"], store, [b"then"] * 3)
    before = present(folder)
    put, count = FolderRestore._put, []

    def failing(restoring, beneath, step):
        count.append(step)
        if len(count) == 2:
            raise OSError(28, "No space left on device")
        put(restoring, beneath, step)

    monkeypatch.setattr(FolderRestore, "_put", failing)
    with pytest.raises(CheckpointError, match="No space left"):
        restore(wanted, folder, store, settings)
    assert present(folder) == before


def version(folder, files, store, settings):
    """Return a folder with these files as a snapshot would have it."""
    for path in folder.iterdir():
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)
    with saved(folder, store, settings) as saving:
        return saving.stored()


def test_a_merge_takes_what_one_side_changed_and_names_what_both_did(folder, store, settings):
    def of(**files):
        return version(folder, files, store, settings)

    base = of(same="s", ours="1", theirs="1", gone="x", both="1", equal="1")
    ours = of(same="s", ours="2", theirs="1", gone="x", both="1", equal="2", new="n")
    theirs = of(same="s", ours="1", theirs="2", both="1", equal="2", other="o")
    found = merged(base, ours, theirs)
    assert found.files["ours"] == ours.files["ours"]
    assert found.files["theirs"] == theirs.files["theirs"]
    assert found.files.keys() == {"same", "ours", "theirs", "both", "equal", "new", "other"}
    with pytest.raises(KernelStateConflict, match="both"):
        merged(base, of(both="2"), of(both="3"))
    with pytest.raises(GpuCkptError, match="gone"):
        merged(base, of(gone="changed"), of(same="s"))
