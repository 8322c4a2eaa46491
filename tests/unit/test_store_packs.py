"""Pack files: what is written is read back, and damage is refused by name."""

import os
import struct
from pathlib import Path

import pytest

from jupyter_gpuckpt.errors import FormatTooNew, ObjectCorrupt
from jupyter_gpuckpt.images.unpack import FileSink, Unpacking
from jupyter_gpuckpt.store import packs
from jupyter_gpuckpt.store.codecs import RAW, digest_of
from jupyter_gpuckpt.store.local import LocalStore
from jupyter_gpuckpt.store.packs import Entry, PackFile
from jupyter_gpuckpt.store.writer import Record
from jupyter_gpuckpt.wire.manifest_records import Chunk, Stream
from jupyter_gpuckpt.wire.progress import Progress

CHUNKS = [os.urandom(length) for length in (1, 4096, 100_000, 33)]


def sealed(folder: Path) -> tuple[Path, list[Entry]]:
    pack = PackFile(folder, "one")
    entries = [pack.reserve(digest_of(chunk), len(chunk), len(chunk), RAW) for chunk in CHUNKS]
    pack.write(entries, CHUNKS)
    pack.entries += entries
    assert pack.seal().length == (folder / "one.pack").stat().st_size
    return folder / "one.pack", entries


def test_a_sealed_pack_describes_itself(tmp_path):
    path, entries = sealed(tmp_path)
    assert packs.read_index(path) == entries
    assert list(packs.scan(path)) == entries
    assert [packs.read_payload(path, entry) for entry in entries] == CHUNKS
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_pack_has_its_final_name_only_when_it_is_sealed(tmp_path):
    pack = PackFile(tmp_path, "one")
    assert [path.name for path in tmp_path.iterdir()] == ["tmp-one.pack"]
    pack.discard()
    assert not list(tmp_path.iterdir())


def test_more_records_than_one_system_call_takes(tmp_path):
    pack = PackFile(tmp_path, "many")
    chunks = [index.to_bytes(4, "little") for index in range(1500)]
    entries = [pack.reserve(digest_of(chunk), 4, 4, RAW) for chunk in chunks]
    pack.write(entries, chunks)
    pack.entries += entries
    pack.seal()
    path = tmp_path / "many.pack"
    assert list(packs.scan(path)) == entries
    assert [packs.read_payload(path, entry) for entry in entries] == chunks


@pytest.mark.parametrize("lost", [1, 8, 56, 57, 200, 100_000])
def test_a_truncated_pack_is_refused_by_name_and_its_complete_records_found(tmp_path, lost):
    path, entries = sealed(tmp_path)
    os.truncate(path, path.stat().st_size - lost)
    with pytest.raises(ObjectCorrupt, match=r"one\.pack"):
        packs.read_index(path)
    length = path.stat().st_size
    whole = [entry for entry in entries if entry.offset + entry.stored_length <= length]
    assert list(packs.scan(path)) == whole


@pytest.mark.parametrize("from_end", [1, 10, 20, 50, 60, 57 + 56, 56 * 4])
def test_an_altered_index_is_refused_by_name(tmp_path, from_end):
    path, entries = sealed(tmp_path)
    flip(path, path.stat().st_size - from_end)
    with pytest.raises(ObjectCorrupt, match=r"one\.pack"):
        packs.read_index(path)
    assert list(packs.scan(path)) == entries


@pytest.mark.parametrize("place", [0, 4, 8, 20, 40, 60, -1])
def test_an_altered_record_header_is_refused(tmp_path, place):
    path, entries = sealed(tmp_path)
    entry = entries[2]
    if (
        place >= packs.RECORD_BYTES or place < 0
    ):  # the payload: the header is right, the digest is not
        flip(path, entry.offset + abs(place))
        assert digest_of(packs.read_payload(path, entry)) != entry.digest
    else:
        flip(path, entry.offset - packs.RECORD_BYTES + place)
        with pytest.raises(ObjectCorrupt, match=entry.digest.hex()[:16]):
            packs.read_payload(path, entry)
    assert entry not in list(packs.scan(path))


def test_a_newer_format_is_refused_with_both_versions(tmp_path):
    path, _ = sealed(tmp_path)
    with path.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 7))
    with pytest.raises(FormatTooNew, match=r"version 7.*up to 1"):
        packs.read_index(path)


def test_what_is_no_pack_is_refused(tmp_path):
    path = tmp_path / "text.pack"
    for text in (b"", b"short", b"not a pack at all" * 100):
        path.write_bytes(text)
        with pytest.raises(ObjectCorrupt, match=r"text\.pack"):
            packs.read_index(path)
        assert not list(packs.scan(path))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x55
    path.write_bytes(data)


def test_a_codec_of_a_newer_version_is_no_damage(tmp_path):
    digest = digest_of(b"abc")
    with LocalStore(tmp_path / "store") as store:
        with store.writer() as writer:
            writer.append_all([Record(digest, b"xyz", 3, 99)])
            writer.finish()
        for _ in range(2):
            with pytest.raises(FormatTooNew, match="codec 99"):
                store.load(digest)
        stream = Stream("a", 3, [Chunk(digest, 3)])
        with pytest.raises(FormatTooNew, match="codec 99"):
            Unpacking([(stream, FileSink(tmp_path / "a"))], store, threads=1).run(Progress())
        with store.writer() as writer:
            assert writer.known([digest]), "it is not stored again"


def test_a_run_can_be_looked_at_where_it_lies(tmp_path):
    path, _ = sealed(tmp_path)
    data = path.read_bytes()
    for start, end in ((0, len(data)), (5000, 90_001), (4096, 8192), (len(data) - 3, len(data))):
        found = packs.map_span(path, start, end)
        assert bytes(found) == data[start:end]
        # Whoever gets it may write to it.
        found[0] ^= 0xFF
    assert path.read_bytes() == data


def test_a_run_that_is_not_there_whole_is_not_looked_at(tmp_path):
    path, _ = sealed(tmp_path)
    length = path.stat().st_size
    assert packs.map_span(path, length - 10, length + 1) is None
    assert packs.map_span(tmp_path / "gone.pack", 0, 10) is None
