"""Stripes: every byte has one place, and the files are as long as those places need."""

from __future__ import annotations

import pytest

from jupyter_gpuckpt.images.pack import FileSource, shared_file
from jupyter_gpuckpt.images.partial import PartialFileSource, shared_partial_file
from jupyter_gpuckpt.wire import stripes
from jupyter_gpuckpt.wire.stripes import STRIPE_BYTES

PAGE = 4096


def written(folder, data, number):
    """Write bytes in stripes to this number of files; return the paths of the files."""
    paths = [folder / str(file) for file in range(number)]
    for path, length in zip(paths, stripes.file_lengths(len(data), number), strict=True):
        path.write_bytes(bytes(length))
    at = 0
    for part in stripes.parts(0, len(data), number):
        with paths[part.file].open("r+b") as file:
            file.seek(part.offset)
            file.write(data[at : at + part.length])
        at += part.length
    return paths


@pytest.mark.parametrize("number", [1, 2, 3, 32])
@pytest.mark.parametrize("length", [0, 1, STRIPE_BYTES - 1, STRIPE_BYTES, 5 * STRIPE_BYTES + PAGE])
def test_every_byte_has_one_place_and_files_have_no_other_bytes(number, length):
    found = {}
    for part in stripes.parts(0, length, number):
        assert 0 < part.length <= STRIPE_BYTES
        assert found.get(part.file, 0) == part.offset
        found[part.file] = part.offset + part.length
    lengths = stripes.file_lengths(length, number)
    assert [found.get(file, 0) for file in range(number)] == lengths
    assert sum(lengths) == length


def test_sources_read_stripes_here_and_in_another_process(tmp_path):
    data = b"".join(page.to_bytes(4, "little") * 1024 for page in range(3 * 1024 + 5))
    paths = written(tmp_path, data, 3)
    source = FileSource("memory", *paths)
    assert source.length == len(data)
    ranges = [(PAGE, STRIPE_BYTES), (STRIPE_BYTES + 5 * PAGE, len(data))]
    begin = ranges[1][0]
    (tmp_path / "partial").mkdir()
    kept = b"".join(data[start:end] for start, end in ranges)
    some = written(tmp_path / "partial", kept, 2)
    partial = PartialFileSource("memory", *some, length=len(data), ranges=ranges)
    for one in (
        source,
        shared_file(source.share()[1]),
        partial,
        shared_partial_file(partial.share()[1]),
    ):
        for start, length in ((begin, 2 * STRIPE_BYTES - 3), (PAGE, 17), (len(data) - 9, 9)):
            buffer = bytearray(length)
            one.read_into(start, memoryview(buffer))
            assert buffer == data[start : start + length]
