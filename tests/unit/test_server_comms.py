"""What is kept of a kernel's comms for the next server."""

import json
import os

import pytest

from jupyter_gpuckpt.server.messages.comms import SavedComms

TARGETS = {"one": "jupyter.widget", "two": "other"}


def states(picture):
    model = {"model_name": "M", "model_module": "m", "model_module_version": "1"}
    data = {
        "method": "update_states",
        "states": {"one": {**model, "state": {"value": 7}}},
        "buffer_paths": [["one", "state", "picture"]],
    }
    return [json.dumps(data).encode(), picture]


def test_what_is_kept_comes_back():
    comms = SavedComms.from_agent(TARGETS, states(b"picture"))
    again = SavedComms.from_record(json.loads(json.dumps(comms.record())))
    assert again.targets == TARGETS
    assert again.all_states() == comms.all_states()
    assert again.state_of("one") == (
        {"method": "update", "state": {"value": 7}, "buffer_paths": [["picture"]]},
        [b"picture"],
    )
    assert again.state_of("two") is None


def test_large_states_are_not_recorded():
    random = os.urandom(1 << 20)
    record = SavedComms.from_agent(TARGETS, states(random)).record()
    assert len(json.dumps(record)) < 1000
    assert SavedComms.from_record(record).targets == TARGETS
    assert SavedComms.from_record(record).all_states() is None


@pytest.mark.parametrize("damage", ["not base64", "AAAA", "KLUv/QQAAQAA", 7])
def test_what_cannot_be_read_is_left_out(damage):
    comms = SavedComms.from_record({"targets": TARGETS, "states": damage})
    assert comms.targets == TARGETS
    assert comms.all_states() is None


@pytest.mark.parametrize("record", [None, {}, []])
def test_older_records_know_no_comms(record):
    assert SavedComms.from_record(record).listed(None) == {"status": "ok", "comms": {}}
