"""Compression gives back what it got, or says that it cannot, and finds the numbers in memory."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import zstandard

from jupyter_gpuckpt.images.compression import Compressor
from jupyter_gpuckpt.store import grouping
from jupyter_gpuckpt.store.codecs import (
    GROUPED,
    RAW,
    ZSTD,
    CodecError,
    Decompressor,
    decompress,
)

RNG = np.random.default_rng(0)
COUNT = 50_000
WEIGHTS = RNG.normal(0, 0.02, COUNT)
FLOATS = WEIGHTS.astype(np.float32)
FLOAT32 = FLOATS.tobytes()
#: numpy has no bfloat16: it is the upper half of a float32.
BFLOAT16 = (FLOATS.view(np.uint32) >> 16).astype(np.uint16).tobytes()
INTEGERS = RNG.integers(0, 100_000, COUNT).tobytes()
PICTURE = np.repeat((np.cumsum(RNG.integers(-2, 3, COUNT)) & 255).astype(np.uint8), 3).tobytes()
PROGRAM = Path(vars(zstandard)["backend_c"].__file__).read_bytes()[200_000:500_000]


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        pytest.param(b"a", RAW, id="one byte"),
        pytest.param(os.urandom(300_000), RAW, id="noise"),
        pytest.param(b"abc" * 100_000, ZSTD, id="repeated"),
        pytest.param(os.urandom(100_000) + b"\1" * 200_000, ZSTD, id="half noise"),
        pytest.param(PICTURE, ZSTD, id="gray picture with three colors"),
        pytest.param(PROGRAM, ZSTD, id="program"),
        pytest.param(FLOAT32[:4096], ZSTD, id="a page of float32"),
        pytest.param(FLOAT32, GROUPED[4], id="float32"),
        pytest.param(FLOAT32 + b"abc", GROUPED[4], id="float32 and a rest"),
        pytest.param(FLOAT32[:16384], GROUPED[4], id="little float32"),
        pytest.param(WEIGHTS.tobytes(), GROUPED[8], id="float64"),
        pytest.param(WEIGHTS.astype(np.float16).tobytes(), GROUPED[2], id="float16"),
        pytest.param(BFLOAT16, GROUPED[2], id="bfloat16"),
        pytest.param(INTEGERS, GROUPED[8], id="integers"),
    ],
)
def test_a_chunk_comes_back(chunk, expected):
    codec, payload = Compressor().compress(memoryview(chunk))
    assert codec == expected
    assert len(payload) <= len(chunk)
    assert decompress(codec, payload, len(chunk)) == chunk
    target = memoryview(bytearray(len(chunk) + 10))
    assert Decompressor().unpack(codec, memoryview(payload), len(chunk), target) == chunk
    assert bytes(target[len(chunk) :]) == bytes(10)


@pytest.mark.parametrize(
    ("chunk", "most"),
    [
        pytest.param(FLOAT32, 0.86, id="float32"),
        pytest.param(WEIGHTS.tobytes(), 0.89, id="float64"),
        pytest.param(WEIGHTS.astype(np.float16).tobytes(), 0.87, id="float16"),
        pytest.param(BFLOAT16, 0.70, id="bfloat16"),
        pytest.param(INTEGERS, 0.30, id="integers"),
        # What repeats is found in the groups as well.
        pytest.param(FLOAT32[:4000] * 60, 0.03, id="repeated float32"),
    ],
)
def test_numbers_become_smaller_than_by_zstd_alone(chunk, most):
    _, payload = Compressor().compress(memoryview(chunk))
    assert len(payload) < most * len(chunk)


@pytest.mark.parametrize("width", grouping.WIDTHS)
@pytest.mark.parametrize("length", [0, 1, 7, 8, 127, 128, 129, 4096, 100_003])
def test_grouping_sorts_bytes_by_their_place(width, length):
    data = memoryview(RNG.bytes(length))
    groups = memoryview(bytearray(length))
    grouping.group(width, data, groups)
    whole = length // width * width
    numbers = np.frombuffer(data[:whole], np.uint8).reshape(-1, width)
    assert groups == numbers.T.tobytes() + bytes(data[whole:])
    for mask in (0, 1, (1 << width) - 1, 0b10100110 & ((1 << width) - 1)):
        parts = numbers.T.tobytes(), bytes(data[whole:])
        count = whole // width
        here, there = bytearray(), bytearray()
        for place in range(width):
            (here if mask >> place & 1 else there).extend(parts[0][place * count :][:count])
        back = memoryview(bytearray(length))
        grouping.ungroup(width, mask, memoryview(here + parts[1]), memoryview(there), back)
        assert back == data


def test_threads_do_not_share_their_state():
    parts = [os.urandom(1000) * 100 for _ in range(64)]
    parts += [RNG.normal(size=20_000).astype(np.float32).tobytes() for _ in range(64)]

    def there_and_back(part: bytes) -> bytes:
        codec, payload = Compressor().compress(memoryview(part))
        return decompress(codec, payload, len(part))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(there_and_back, parts)) == parts


@pytest.mark.parametrize("with_target", [False, True])
@pytest.mark.parametrize("chunk", [b"abcdef" * 10_000, FLOAT32, INTEGERS], ids=["text", "f", "i"])
@pytest.mark.parametrize(
    "kind", ["truncated", "header", "length", "codec", "width", "raw", "empty", "mask", "short"]
)
def test_what_is_not_the_payload_is_refused(kind, chunk, with_target):
    codec, payload = Compressor().compress(memoryview(chunk))
    assert codec != RAW
    length = len(chunk)
    match kind:
        case "truncated":
            payload = payload[:-5]
        case "header":
            payload = b"\xff" + bytes(payload)[1:]
        case "length":
            length += 1
        case "codec":
            codec = 77
        case "width":
            codec = next(other for other in GROUPED.values() if other != codec)
        case "raw":
            codec = RAW
        case "empty":
            payload = b""
        case "mask":
            payload = bytes((payload[0] ^ 1,)) + bytes(payload)[1:]
        case "short":
            payload = payload[: len(payload) // 10]
    target = memoryview(bytearray(length))
    undo = partial(Decompressor().unpack, target=target) if with_target else decompress
    with pytest.raises(CodecError):
        undo(codec, memoryview(payload), length)
