"""Compression gives back what it got, or says that it cannot."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from jupyter_gpuckpt.images.compression import RAW, ZSTD, compress
from jupyter_gpuckpt.store.codecs import CodecError, Decompressor, decompress

FLOATS = np.random.default_rng(0).normal(0, 0.02, 65536).astype(np.float32).tobytes()


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        (b"a", RAW),
        (os.urandom(300_000), RAW),
        (b"abc" * 100_000, ZSTD),
        (FLOATS, ZSTD),
        (os.urandom(100_000) + b"\1" * 200_000, ZSTD),
    ],
)
def test_a_chunk_comes_back(chunk, expected):
    codec, payload = compress(memoryview(chunk))
    assert codec == expected
    assert len(payload) <= len(chunk)
    assert decompress(codec, payload, len(chunk)) == chunk
    target = memoryview(bytearray(len(chunk) + 10))
    assert Decompressor().unpack(codec, memoryview(payload), len(chunk), target) == chunk
    assert bytes(target[len(chunk) :]) == bytes(10)


def test_threads_do_not_share_their_state():
    parts = [os.urandom(1000) * 100 for _ in range(64)]

    def there_and_back(part: bytes) -> bytes:
        codec, payload = compress(part)
        return bytes(decompress(codec, payload, len(part)))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(there_and_back, parts)) == parts


@pytest.mark.parametrize("with_target", [False, True])
@pytest.mark.parametrize("kind", ["truncated", "header", "length", "codec", "raw", "empty"])
def test_what_is_not_the_payload_is_refused(kind, with_target):
    chunk = b"abcdef" * 10_000
    codec, payload = compress(chunk)
    length = len(chunk)
    match kind:
        case "truncated":
            payload = payload[:-5]
        case "header":
            payload = b"\0" + bytes(payload)[1:]
        case "length":
            length += 1
        case "codec":
            codec = 77
        case "raw":
            codec = RAW
        case "empty":
            payload = b""
    target = memoryview(bytearray(length))
    undo = partial(Decompressor().unpack, target=target) if with_target else decompress
    with pytest.raises(CodecError):
        undo(codec, memoryview(payload), length)
