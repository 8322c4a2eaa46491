"""The kept records are read by today's code, every field of them, with every value that their enumerations had.

When one of these fails before the first release, run `make golden`. After it, a field or value went or has another meaning now, and what
users have on their disks, in their buckets and in their kernels' memory cannot be read any more: keep the old name readable, or read the
old form beside the new one and raise the format's version.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from jupyter_gpuckpt.wire import decoding
from tests.golden.programs import FILES
from tests.golden.records import KEPT, enumerated, filled, kind_of

RECORDS = json.loads((FILES / "records.json").read_text())


@pytest.mark.parametrize("name", KEPT)
def test_every_field_is_filled_and_read(name):
    kind, known = kind_of(name), RECORDS[name]["record"]
    assert known == filled(kind)
    in_json = decoding.from_json(json.dumps(known), kind)
    assert json.loads(msgspec.json.encode(in_json)) == known
    packed = msgspec.msgpack.encode(in_json)
    assert decoding.from_msgpack(packed, kind) == in_json


@pytest.mark.parametrize("name", KEPT)
def test_every_value_of_an_enumeration_is_known(name):
    assert RECORDS[name]["values"] == enumerated(kind_of(name))


def test_all_records_are_there():
    assert RECORDS.keys() == {*KEPT}
