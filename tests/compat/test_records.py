"""Records that 0.1.0 wrote are read by today's code, every field of them, with every value that its enumerations had.

When one of these fails, a field or value went or has another meaning now, and what users have on their disks, in their buckets
and in their kernels' memory cannot be read any more. Keep the old name readable, or read the old form beside the new one and raise
the format's version. Do not make `records.json` of a released version anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.wire import decoding
from tests.compat.records import KEPT, enumerated, kind_of

FILES = sorted(Path(__file__).parent.glob("*/records.json"))
CASES = [
    pytest.param(name, known, id=f"{path.parent.name} {name}")
    for path in FILES
    for name, known in json.loads(path.read_text()).items()
]


def assert_holds(found, known):
    """Check that `found` contains all of `known`; it may contain more."""
    if isinstance(known, dict):
        assert known.keys() <= found.keys()
        for name, value in known.items():
            assert_holds(found[name], value)
    elif isinstance(known, list):
        assert len(found) >= len(known)
        for one, other in zip(found, known, strict=False):
            assert_holds(one, other)
    else:
        assert found == known


@pytest.mark.parametrize(("name", "known"), CASES)
def test_every_field_is_read(name, known):
    kind = kind_of(name)
    in_json = decoding.from_json(json.dumps(known["record"]), kind)
    assert_holds(json.loads(msgspec.json.encode(in_json)), known["record"])
    packed = msgspec.msgpack.encode(in_json)
    assert decoding.from_msgpack(packed, kind) == in_json


@pytest.mark.parametrize(("name", "known"), CASES)
def test_every_value_of_an_enumeration_is_known(name, known):
    now = enumerated(kind_of(name))
    for enumeration, values in known["values"].items():
        assert set(values) <= set(now[enumeration])


def test_all_records_are_there():
    assert FILES
    assert {*json.loads(FILES[-1].read_text())} == {*KEPT}
