"""How many inputs a fuzzer tries, and what they are made of.

In `make test` they are some thousand, always the same ones. `make fuzz` takes new ones each time, as many as FUZZ_INPUTS says.
"""

import os
import random
import struct
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

TOTAL = int(os.environ.get("FUZZ_INPUTS", "0"))
_USUAL = 6_000

#: What numbers, lengths and texts are replaced by, as bytes.
_WORDS = [
    *(struct.pack("<I", number) for number in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)),
    *(struct.pack("<Q", number) for number in (1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1)),
    *(b"\xff" * 10, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"),
    *(b"../", b"/etc/passwd\0", b"\0", b"\xed\xa0\x80", b"1e999", b'"', b"[" * 300, b"\x91" * 300),
]
#: What values of records are replaced by.
_VALUES: list[Any] = [
    *(None, True, 0, 1, -1, 1 << 16, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1, -(1 << 63)),
    *(0.0, -1.0, 1e300, float("inf"), float("nan")),
    *("", ".", "..", "/", "//", "../../etc/x", "/etc/x", "a\0b", "é", "link_remap.1", "x" * 5000),
    *(
        "/dev/shm/a",
        "/dev/shm/../../etc/x",
        "/run/gpuckpt/keeper",
        "/dev/shm/.gpuckpt/keeper",
        "/run/gpuckpt/images/a.img",
    ),
    *(
        "file",
        "directory",
        "symlink",
        "hardlink",
        "fifo",
        "device",
        "images",
        b"",
        b"x" * 32,
        [],
        {},
    ),
    *([[]], [None], {"a": {}}, {"": ""}, {"x": [{}]}),
]


def tries(share: float) -> Callable[..., Any]:
    """Return the settings of a fuzzer that tries this share of all inputs."""
    return settings(
        max_examples=max(1, round((TOTAL or _USUAL) * share)),
        derandomize=not TOTAL,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def altered(samples: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Any bytes, and samples of which some bytes, or what is between them, were changed."""
    known = st.builds(_altered, st.sampled_from(samples), st.integers(0, (1 << 32) - 1))
    return st.one_of(known, known, known, st.binary(max_size=300))


def distorted(samples: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Draw records, as plain lists and mappings, with some values replaced, doubled or left out."""
    return st.builds(_distorted, st.sampled_from(samples), st.integers(0, (1 << 32) - 1))


def _altered(sample: bytes, seed: int) -> bytes:
    draw = random.Random(seed)
    data = bytearray(sample)
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(7):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1 if at < len(data):
                data[at] = draw.randrange(256)
            case 2:
                data[at:at] = draw.choice(_WORDS)
            case 3:
                word = draw.choice(_WORDS)
                data[at : at + len(word)] = word
            case 4:
                del data[at : at + draw.choice((1, 4, 30))]
            case 5:
                data[at:at] = data[at : at + draw.choice((1, 8, 60))]
            case _:
                del data[at:]
    return bytes(data)


def _distorted(sample: Any, seed: int) -> Any:
    draw = random.Random(seed)
    whole = [msgspec.msgpack.decode(msgspec.msgpack.encode(sample))]
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        parent: Any = whole
        key: Any = 0
        while isinstance(parent[key], (dict, list)) and parent[key] and draw.random() < 0.9:
            parent = parent[key]
            key = (
                draw.choice(list(parent))
                if isinstance(parent, dict)
                else draw.randrange(len(parent))
            )
        match draw.randrange(6):
            case 0 if parent is not whole:
                del parent[key]
            case 1 if isinstance(parent, list) and parent is not whole:
                parent.append(deepcopy(parent[key]))
            case 2 if isinstance(parent, dict):
                parent[draw.choice(("", "x", 1))] = deepcopy(draw.choice(_VALUES))
            case _:
                parent[key] = deepcopy(draw.choice(_VALUES))
    return whole[0]
