"""Cuts follow the content of pages, wherever they lie."""

import functools
import os

import numpy as np
import pytest

from jupyter_gpuckpt.images.chunking import MAX_PAGES, PAGE, cut, first_begin, is_zero


@functools.cache  # a worker that runs none of these tests makes none
def random_bytes():
    """Return the same random bytes at each call."""
    return np.random.default_rng(1).bytes(4096 * PAGE)


def chunks(data: bytes, **options: int) -> list[bytes]:
    ends = cut(memoryview(data), **options)
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 4095, 4096, 4097, 10 * 4096, 700 * 4096 + 5])
@pytest.mark.parametrize("kind", ["random", "zeros", "ones"])
def test_cuts_cover_everything_at_page_granularity(length, kind):
    data = {"random": random_bytes()[:length], "zeros": bytes(length), "ones": b"\1" * length}[kind]
    ends = cut(memoryview(data))
    assert ends == sorted(set(ends))
    assert not length or ends[-1] == length
    assert all(end % PAGE == 0 for end in ends[:-1])
    assert b"".join(chunks(data)) == data


def test_chunks_have_about_64_pages_and_512_at_most():
    lengths = [len(chunk) // PAGE for chunk in chunks(random_bytes())]
    assert 40 < sum(lengths) / len(lengths) < 100
    assert max(lengths) <= MAX_PAGES
    assert max(len(chunk) for chunk in chunks(b"\1" * (2000 * PAGE))) == MAX_PAGES * PAGE


def test_chunks_are_longer_where_there_are_fewer_marks():
    data = random_bytes() * 4 + np.random.default_rng(3).bytes(4096 * PAGE)
    lengths = [len(chunk) // PAGE for chunk in chunks(data, chunk_pages=256)]
    assert 170 < sum(lengths) / len(lengths) < 270
    assert max(lengths) == MAX_PAGES


def test_a_chunk_is_zeros_or_has_no_page_of_zeros():
    rng = np.random.default_rng(2)
    pages = np.frombuffer(random_bytes()[: 1000 * PAGE], np.uint8).reshape(-1, PAGE).copy()
    pages[rng.random(1000) < 0.3] = 0
    pages[100:300] = 0
    pages[5] = 0
    pages[5, -1] = 1  # one byte, in no sampled word
    for tail in (b"", b"\0" * 10, b"\0" * 99 + b"\1"):
        data = pages.tobytes() + tail
        for chunk in chunks(data):
            zero = [is_zero(memoryview(chunk[i : i + PAGE])) for i in range(0, len(chunk), PAGE)]
            assert all(zero) or not any(zero)
            assert is_zero(memoryview(chunk)) == (not any(chunk))
        assert b"".join(chunks(data)) == data


def test_zeros_are_one_chunk_however_long():
    assert cut(memoryview(bytes(5000 * PAGE))) == [5000 * PAGE]


@pytest.mark.parametrize("length", [1, 7, 8, 4095, 4096, 4097, 10_000])
def test_one_bit_makes_a_piece_not_zero(length):
    assert is_zero(memoryview(bytes(length)))
    for place in {0, length // 2, length - 1}:
        piece = bytearray(length)
        piece[place] = 128
        assert not is_zero(memoryview(piece))


@pytest.mark.parametrize("count", [1, 2, 3, 17, 1000])
@pytest.mark.parametrize("place", [0, 1, 500, 2000])
def test_cuts_come_together_again_after_an_insertion(place, count):
    changed = (
        random_bytes()[: place * PAGE] + os.urandom(count * PAGE) + random_bytes()[place * PAGE :]
    )
    before, after = set(chunks(random_bytes())), set(chunks(changed))
    assert sum(map(len, after - before)) <= (count + 2 * MAX_PAGES) * PAGE


def test_nearly_empty_and_equal_pages_are_not_cut_at_every_page():
    sparse = np.zeros((3000, PAGE), np.uint8)
    sparse[:, 0] = 1
    assert len(cut(memoryview(sparse.tobytes()))) == -(-3000 // MAX_PAGES)
    for value in range(200):
        equal = np.full((600, PAGE), value + 1, np.uint8)
        assert len(cut(memoryview(equal.tobytes()))) <= 3


@pytest.mark.parametrize("chunk_pages", [64, 256])
def test_a_begin_by_content_does_not_change_when_more_is_seen(chunk_pages):
    data = memoryview(random_bytes())
    for start in range(800):
        rest = data[start * PAGE :]
        found = [first_begin(rest[: pages * PAGE], chunk_pages) for pages in (64, 128, 256)]
        seen = [begin for begin in found if begin is not None]
        assert len(set(seen)) <= 1
        assert found == sorted(found, key=lambda begin: begin is not None)
        if seen and seen[0]:
            assert start * PAGE + seen[0] in cut(data, chunk_pages)


def test_zeros_may_be_cut_anywhere():
    assert first_begin(memoryview(bytes(PAGE) + random_bytes()[:PAGE])) == 0
    assert first_begin(memoryview(random_bytes()[: 2 * PAGE] + bytes(PAGE))) == 2 * PAGE
    assert first_begin(memoryview(b"\1" * PAGE * 4)) is None
    assert first_begin(memoryview(b"")) == 0
