"""Every message between daemon and clients decodes to a record or raises an error of ours."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpuckpt.errors import ErrorRecord, GpuCkptError
from jupyter_gpuckpt.wire import calls, decoding, protocol, snapshot_records
from tests.fuzz.inputs import altered, distorted, tries

KINDS = sorted(
    (
        kind
        for module in (protocol, snapshot_records)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    ),
    key=lambda kind: kind.__name__,
)
OPERATION = (
    b'{"operation_id":"a","verb":"save","kernel_id":"b","state":"failed","stage":"","progress":[],'
    b'"error":{"message":"m","code":"kernel_lost","hint":"","details":""},"result":null}'
)
EVENT = (
    b'{"kernel":null,"gone":"x","snapshot":{"snapshot_id":"a","kernel_id":"b","change":"added"}}'
)
ERROR = msgspec.json.encode(ErrorRecord("A sentence.", "snapshot_not_found", "Do so."))
SAMPLES = [OPERATION, EVENT, ERROR]


def look(data):
    for kind in KINDS:
        try:
            found = decoding.from_json(data, kind)
        except msgspec.DecodeError:
            continue
        msgspec.json.encode(found)
    for call in (calls.kernels(), calls.operation("x"), calls.snapshots(), calls.store()):
        for status in (200, 404, 500):
            with suppress(GpuCkptError):
                call.parse(status, data)


@tries(0.05)
@given(altered(SAMPLES))
def test_messages(data):
    look(data)


@tries(0.05)
@given(distorted([msgspec.json.decode(sample) for sample in SAMPLES]))
def test_messages_that_say_something_else(value):
    try:
        data = msgspec.json.encode(value)
    except (UnicodeDecodeError, TypeError):
        pytest.skip("no JSON")
    look(data)


@tries(0.05)
@given(st.text(max_size=40) | st.sampled_from(["..", ".", "a/../b", "%2F", "a?b", "#", "\0"]))
def test_an_id_stays_one_segment_of_a_path(text):
    path = calls.kernel(text).path
    assert path.startswith("/kernels/")
    assert not set(path[9:]) & set("/?#\\\0")
    assert path[9:] not in {".", ".."}
