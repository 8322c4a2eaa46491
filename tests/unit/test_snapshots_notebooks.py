"""Tests of notebooks in snapshots: nothing is lost, unchanged cells are stored once, hostile notebooks are refused."""

import json
import os

import msgspec
import pytest

from jupyter_gpuckpt.errors import ManifestInvalid
from jupyter_gpuckpt.images.pack import BytesSource, pack
from jupyter_gpuckpt.snapshots import notebooks
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.wire.manifest_records import SnapshotInfo, Stream
from jupyter_gpuckpt.wire.progress import Progress
from tests.manifests import manifest_of


@pytest.fixture
def store(tmp_path):
    with LocalStore(tmp_path / "store") as store:
        yield store


def cell(number, text):
    output = {"output_type": "stream", "name": "stdout", "text": text}
    return {
        "cell_type": "code",
        "execution_count": number,
        "id": f"cell{number}",
        "metadata": {},
        "outputs": [output],
        "source": f"print({number})",
    }


def written(folder, cells, **more):
    content = {"cells": cells, "metadata": {"ä": 1.50}, "nbformat": 4, "nbformat_minor": 5, **more}
    (folder / "a.ipynb").write_text(json.dumps(content, indent=1))
    os.utime(folder / "a.ipynb", (1000, 1000))
    return content


def stored(folder, store):
    """Store the notebook of a folder; return its manifest, and how many bytes were not in the store before."""
    notebook, warnings = notebooks.read({"root": str(folder), "path": "a.ipynb"})
    assert not warnings
    assert notebook.modified == 1000
    packed = pack(notebook.sources, store, threads=1, progress=Progress())
    info = SnapshotInfo("a" * 32, "k", 1, "save")
    return manifest_of(info, *packed.streams), packed.new_bytes


def test_a_notebook_comes_back_and_only_changed_cells_are_stored_again(tmp_path, store):
    cells = [cell(number, os.urandom(20_000).hex()) for number in range(20)]
    cells += [cell(20, "short"), {"cell_type": "markdown", "metadata": {}, "source": ["# a", "b"]}]
    content = written(tmp_path, cells)
    first, new_bytes = stored(tmp_path, store)
    assert json.loads(notebooks.document(first, store)) == content
    assert new_bytes > 400_000

    content = written(tmp_path, [cell(99, "new"), *cells[5:], *cells[:5]])
    second, new_bytes = stored(tmp_path, store)
    assert json.loads(notebooks.document(second, store)) == content
    # The new cell, and those that share a stream with it or with the cells at the old ends.
    assert new_bytes < 20_000


def test_many_small_cells_are_few_streams_and_most_stay_as_they_were(tmp_path, store):
    cells = [cell(number, os.urandom(50).hex()) for number in range(1000)]
    written(tmp_path, cells)
    first, new_bytes = stored(tmp_path, store)
    assert len(first.streams) < 120
    content = written(tmp_path, [*cells[:500], cell(9999, "inserted"), *cells[500:]])
    second, more = stored(tmp_path, store)
    assert json.loads(notebooks.document(second, store)) == content
    assert more < new_bytes / 5


@pytest.mark.parametrize("path", ["", "a.txt", "missing.ipynb", 7, None])
def test_kernels_without_a_notebook_have_none_in_their_snapshots(tmp_path, path):
    (tmp_path / "a.txt").touch()
    assert notebooks.read({"root": str(tmp_path), "path": path}) == (None, [])


def test_what_is_not_a_notebook_is_left_out_with_a_warning(tmp_path):
    path = tmp_path / "a.ipynb"
    described = {"root": str(tmp_path), "path": path.name}
    os.mkfifo(path)
    assert "not a file" in notebooks.read(described)[1][0]
    path.unlink()
    with path.open("wb") as file:
        file.truncate(notebooks.MAX_BYTES + 1)
    assert "larger than 64 MB" in notebooks.read(described)[1][0]
    many = cell(1, "")
    many["outputs"] *= notebooks.MAX_PARTS
    written(tmp_path, [many])
    assert "more than 10,000" in notebooks.read(described)[1][0]


def test_hostile_notebooks_are_refused(tmp_path, store):
    def packed(**parts):
        sources = [
            BytesSource(name.replace("_", "/"), data.encode()) for name, data in parts.items()
        ]
        return pack(sources, store, threads=1, progress=Progress()).streams

    info = SnapshotInfo("a" * 32, "k", 1, "save")
    huge = [Stream("notebook", notebooks.MAX_BYTES + 1, [])]
    many = [Stream(f"notebook/cells/{number}", 0, []) for number in range(notebooks.MAX_PARTS + 1)]
    for streams in (
        packed(other=""),
        huge,
        many,
        packed(notebook="7"),
        packed(notebook="{}", notebook_cells_0="{}"),
        packed(notebook="{}", notebook_cells_0="[7]"),
        packed(notebook="{}", notebook_cells_0="[]", notebook_output_0_0="{}"),
        packed(notebook="{}", notebook_cells_0="[{}]", notebook_output_0_1="{}"),
        packed(notebook="{}", notebook_cells_0="[" * 100_000),
        packed(notebook="{}", notebook_cells_0="[" + "{}," * 3_000_000 + "{}]"),
    ):
        with pytest.raises(ManifestInvalid, match="cannot be read"):
            notebooks.document(manifest_of(info, *streams), store)


def test_a_manifest_without_a_notebook_can_still_be_read():
    older = msgspec.to_builtins(manifest_of(SnapshotInfo("a" * 32, "k", 1, "save")))
    del older["notebook_modified"]
    assert msgspec.convert(older, type(manifest_of(SnapshotInfo("b" * 32, "k", 1, "save"))))
