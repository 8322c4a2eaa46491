"""Which variables a kernel takes from the server under which it comes back."""

import os

import pytest

from jupyter_gpuckpt.kernel_agent.environment import take_variables


@pytest.mark.parametrize(
    ("own", "servers", "then"),
    [
        ("0,1", "2,3", "2,3"),
        ("0, 1", "1,2", "1,2"),
        # A kernelspec may have chosen among the server's.
        ("1", "0,1", "1"),
        ("GPU-a", "GPU-a,GPU-b", "GPU-a"),
        (None, "2", "2"),
        ("1", "", "1"),
        (None, "", None),
    ],
)
def test_gpus_are_those_of_the_server_where_the_kernel_had_others(monkeypatch, own, servers, then):
    name = "CUDA_VISIBLE_DEVICES"
    monkeypatch.setenv(name, own or "")  # so that its value before the test comes back
    if own is None:
        del os.environ[name]
    take_variables({}, [], servers)
    assert os.environ.get(name) == then


def test_what_belongs_to_a_server_is_renewed_and_the_rest_stays(monkeypatch):
    for name in ("JPY_PARENT_PID", "JPY_OLD", "JPY_NAME", "MY_OWN", "JPY_NEW"):
        monkeypatch.setenv(name, "before")
    del os.environ["JPY_NEW"]
    take_variables({"JPY_PARENT_PID": "7", "JPY_NAME": "now", "JPY_NEW": "new"}, ["JPY_*"], "")
    found = {name: value for name, value in os.environ.items() if "JPY_" in name}
    assert found == {"JPY_PARENT_PID": "before", "JPY_NAME": "now", "JPY_NEW": "new"}
    assert os.environ["MY_OWN"] == "before"
