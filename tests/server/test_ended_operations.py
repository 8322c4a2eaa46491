"""What a server tells of operations: one line, one event, and metrics that add up."""

import re

import pytest

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.server.events.ended_operations import SCHEMA_ID
from jupyter_gpuckpt.wire import calls
from tests.programs import SANDBOX


def metrics(server):
    """Jupyter's own metrics page, as a dictionary."""
    lines = server.request("GET", "metrics").text.splitlines()
    found = (re.fullmatch(r"(gpuckpt_\S+) (\S+)", line) for line in lines)
    return {match[1]: float(match[2]) for match in found if match}


@pytest.fixture
def server(clean_server):
    """Return a server that has counted nothing yet."""
    clean_server.kill()
    return clean_server.start()


@pytest.fixture
def listener(server, make_listener):
    return make_listener(SCHEMA_ID)


def test_each_is_told_once_with_what_it_did(server, listener, monkeypatch, eventually):
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    page = server.open()
    page.run("import os; data = os.urandom(20_000_000)")
    saved = server.do("save", page.kernel_id)["result"]
    suspended = server.do("suspend", page.kernel_id)["result"]
    with Client.connect() as client:  # not by this server
        client.wait(client.send(calls.resume(page.kernel_id)).operation_id)
    eventually(lambda: len(listener.heard) >= 3)
    told = [(e["kind"], e["state"], e["name"]) for e in listener.heard]
    path = "notebook.ipynb"
    assert told == [(kind, "succeeded", path) for kind in ("save", "suspend", "resume")]
    assert listener.heard[0]["result"]["new_bytes"] == saved["new_bytes"] > 20_000_000
    found = metrics(server)
    for kind in ("save", "suspend", "resume"):
        assert found[f'gpuckpt_operations_total{{kind="{kind}",state="succeeded"}}'] == 1
        assert found[f'gpuckpt_stage_seconds_count{{kind="{kind}",stage="preflight"}}'] == 1
    both = (saved, suspended)
    for what in ("raw", "stored", "new"):
        total = sum(result[f"{what}_bytes"] for result in both)
        assert found[f'gpuckpt_bytes_total{{what="{what}"}}'] == total
    deduplicated = found['gpuckpt_bytes_total{what="deduplicated"}']
    assert deduplicated == sum(result["stored_bytes"] - result["new_bytes"] for result in both)
    assert len(re.findall(rf"{path}: \w+ of kernel {page.kernel_id} succeeded", server.log())) == 3


def test_a_failure_is_told_with_its_reason(server, listener, eventually):
    page = server.open()
    page.run(SANDBOX)
    operation = server.finish(server.begin("save", page.kernel_id))
    eventually(lambda: listener.heard)
    (event,) = listener.heard
    assert (event["state"], event["result"]) == ("failed", None)
    assert event["error"]["message"] == operation["error"]["message"]
    assert metrics(server)['gpuckpt_operations_total{kind="save",state="failed"}'] == 1
    assert operation["error"]["message"] in server.log()


def test_kernels_are_counted_by_state(server, eventually):
    pages = [server.open(f"{name}.ipynb") for name in "ab"]
    server.do("suspend", pages[0].kernel_id)
    expected = {"running": 1, "suspended": 1, "saving": 0}
    eventually(
        lambda: (
            {state: metrics(server)[f'gpuckpt_kernels{{state="{state}"}}'] for state in expected}
            == expected
        )
    )
