"""The daemon answers whatever it is asked, and an id never leads to another route."""

import httpx
import msgspec
import pytest

from jupyter_gpuckpt.client import transport
from jupyter_gpuckpt.errors import GpuCkptError, KernelNotFound, SnapshotNotFound
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.protocol import BranchRequest, LaunchRequest, SignalRequest
from jupyter_gpuckpt.wire.states import KernelState


@pytest.fixture
def daemon_env(emptied_daemon_env):
    return emptied_daemon_env


@pytest.fixture
def http(target):
    """Asks the daemon without our client."""
    with httpx.Client(
        transport=transport.UnixTransport(target.socket), timeout=120, **transport.ANYWHERE
    ) as http:
        yield http


def hostile(kernel_id):
    """Return hostile ids, which would lead to other paths."""
    return [
        f"../kernels/{kernel_id}",
        f"..%2Fkernels%2F{kernel_id}",
        "..",
        ".",
        "a/b",
        "a?b",
        "a#b",
        "%00",
        "é",
        "x" * 200,
    ]


def test_an_id_never_leads_to_another_route(client, kernel):
    for one in hostile(kernel.kernel_id):
        with pytest.raises(GpuCkptError) as caught:
            client.send(calls.delete_snapshot(one))
        assert caught.value.code == "snapshot_not_found", one
        with pytest.raises(KernelNotFound):
            client.send(calls.kill(f"{kernel.kernel_id}/../{one}"))
        with pytest.raises(SnapshotNotFound):
            client.send(calls.launch_spec(one))
    assert client.send(calls.kernel(kernel.kernel_id)).state is KernelState.RUNNING


def test_an_encoded_slash_separates_nothing(http, kernel):
    for path in (
        f"/kernels%2F{kernel.kernel_id}",
        f"/snapshots/..%2Fkernels%2F{kernel.kernel_id}",
        f"/snapshots/%2E%2E%2Fkernels%2F{kernel.kernel_id}",
        f"/snapshots/x/..%2F..%2Fkernels%2F{kernel.kernel_id}",
    ):
        for method in ("GET", "DELETE"):
            answer = http.request(method, path)
            assert answer.status_code == 404, path
            assert answer.json()["code"] in {"error", "snapshot_not_found"}
    assert http.get(f"/kernels/{kernel.kernel_id}").status_code == 200


def deep(levels):
    return "[" * levels + "]" * levels


SPECS = {
    "a zero byte in a word": {"argv": ["a\0b"]},
    "no words": {"argv": []},
    "a zero byte in the environment": {"env": {"A": "\0"}},
    "a name that is none": {"env": {"A=B": "c", "": "d"}},
    "a zero byte in the folder": {"cwd": "/\0"},
    "no folder": {"cwd": "/nowhere"},
    "a zero byte in the log": {"log_path": "/\0"},
    "a log that is a folder": {"log_path": "/tmp"},
    "a port that is none": {"own_ports": [1 << 20]},
    "a port below zero": {"own_ports": [-1]},
    "a mask that is none": {"umask": 1 << 40},
    "too long": {"argv": ["x" * (4 << 20)]},
}


@pytest.mark.parametrize("changes", SPECS.values(), ids=SPECS)
def test_a_launch_that_cannot_work_is_refused(http, owner, spec, changes):
    record = msgspec.to_builtins(
        LaunchRequest(owner.owner_id, msgspec.structs.replace(spec(), **changes))
    )
    answer = http.post("/kernels", json=record)
    assert 400 <= answer.status_code < 500, answer.text
    assert http.get("/kernels").json() == []


def test_nothing_that_is_asked_is_a_defect(http, kernel, owner):
    here = f"/kernels/{kernel.kernel_id}"
    asked = [
        ("POST", f"{here}/signal", msgspec.json.encode(SignalRequest(1 << 40))),
        ("POST", f"{here}/signal", msgspec.json.encode(SignalRequest(-1))),
        ("POST", f"{here}/signal", b'{"signum": 1000}'),
        ("POST", f"{here}/save", b'{"name": "\xff"}'),
        ("POST", f"{here}/save", b'{"jupyter": {"a": %s}}' % deep(100_000).encode()),
        ("PUT", f"{here}/jupyter", b'{"jupyter": {"a": %d}}' % (1 << 70)),
        ("PUT", f"{here}/jupyter", b'{"jupyter": {"a": %s}}' % deep(900).encode()),
        ("PUT", f"{here}/end", b'{"after_seconds": 1e400}'),
        (
            "POST",
            "/owners",
            b'{"owner_id": "x", "kind": "server", "pid": %d, "start_time": 0}' % (1 << 70),
        ),
        ("POST", "/owners/x/claim", b""),
        ("POST", "/snapshots/import", b"x" * 1000),
        ("POST", "/snapshots/prune", b'{"policy": {"keep_last": %d}}' % (1 << 70)),
        (
            "POST",
            "/branches",
            msgspec.json.encode(BranchRequest(owner.owner_id, "../x", "k", [])),
        ),
        ("FOO", "/kernels", b""),
        ("GET", "/snapshots?kernel_id=%ff", b""),
        ("GET", "/snapshots/%ff", b""),
        ("GET", "/operations/x?wait=nan", b""),
        ("GET", "/kernels/%", b""),
    ]
    for method, path, body in asked:
        with http.stream(method, path, content=body) as answer:
            assert answer.status_code < 500, (method, path, body[:80], answer.read())
    assert http.get(here).json()["state"] == "running"
    assert [one["kernel_id"] for one in http.get("/kernels").json()] == [kernel.kernel_id]
