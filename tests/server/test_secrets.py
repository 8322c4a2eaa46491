"""Tokens of servers and keys of kernels are in no file of ours but the packs, which hold memory, and in nobody's arguments."""

import hashlib
import io
import json
import os
import secrets
import signal
import tarfile
from pathlib import Path
from stat import S_ISREG

import pytest
import zstandard

from jupyter_gpuckpt.client import Client
from jupyter_gpuckpt.store import manifests
from jupyter_gpuckpt.wire import calls
from jupyter_gpuckpt.wire.daemon_settings import from_environment
from tests.conftest import wait_for
from tests.live_files import stats_below
from tests.server.page import TIMEOUT, Listener

VARIABLES = (
    "JUPYTERHUB_API_TOKEN",
    "JPY_API_TOKEN",
    "JUPYTER_TOKEN",
    "SLURMD_NODENAME",
    "SLURM_JOB_ID",
)
#: A variable that belongs to no server.
OTHER = "STORE_PASSWORD"
#: What only the digests of tell, so that no output has the tokens.
DIGESTS = f"""
import hashlib, os
for name in {(*VARIABLES, OTHER)!r}:
    print(hashlib.sha256(os.environ.get(name, "").encode()).hexdigest())
"""
SCHEMA = "https://events.jupyter.org/jupyter_gpuckpt/kernel/v1"


def tokens():
    return {name: f"planted-{secrets.token_hex(12)}" for name in VARIABLES}


def digests(values):
    return [hashlib.sha256(value.encode()).hexdigest() for value in values]


def connection_key(server, kernel_id):
    """Out of the connection file that jupyter_client wrote."""
    folder = Path(server.env["JUPYTER_RUNTIME_DIR"])
    return json.loads((folder / f"kernel-{kernel_id}.json").read_text())["key"]


def manifest_body(content):
    return zstandard.ZstdDecompressor().decompress(content[manifests._HEADER.size :])


def written(data):
    """Every file of the data directory that holds no memory, readable."""
    for path, status in stats_below(data):
        if S_ISREG(status.st_mode) and path.suffix != ".pack":
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            yield path, content
            if path.suffix == ".manifest":
                yield path, manifest_body(content)


def arguments():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path, path.read_bytes()
        except OSError:
            continue


def exported(archive):
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if not member.name.endswith(".pack"):
                content = tar.extractfile(member).read()
                yield member.name, content
                if member.name.endswith(".manifest"):
                    yield member.name, manifest_body(content)


def found(planted, *places):
    return [
        (str(place), name)
        for texts in places
        for place, text in texts
        for name, value in planted.items()
        if value.encode() in text
    ]


@pytest.fixture
def kill_daemon(monkeypatch):
    """Kill a server's daemon, as an OOM killer does; waits until it is gone."""

    def kill(server):
        for name in ("JUPYTER_GPUCKPT_RUNTIME_DIR", "JUPYTER_GPUCKPT_DATA_DIR"):
            monkeypatch.setenv(name, server.env[name])
        with Client.connect(from_environment()) as client:
            pid = client.send(calls.handshake()).pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{pid}/exe").exists(), TIMEOUT)

    return kill


def test_tokens_and_keys_are_written_nowhere_and_every_server_gives_its_own(
    make_server, kill_daemon
):
    first = tokens()
    planted = {**first, OTHER: f"planted-{secrets.token_hex(12)}"}
    server = make_server(env=planted).start()
    listener = Listener(server, SCHEMA)
    data = Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"])
    page = server.open()
    planted["key"] = key = connection_key(server, page.kernel_id)
    assert page.run("x = 1;" + DIGESTS).split() == digests([*first.values(), planted[OTHER]])
    server.do("save", page.kernel_id)
    assert not found(planted, written(data), arguments())
    operation = server.do("suspend", page.kernel_id)
    snapshot_id = operation["result"]["snapshot_id"]
    archive = server.request("GET", f"api/gpuckpt/snapshots/{snapshot_id}/export").content
    listener.close()
    assert listener.heard
    events = [("events", json.dumps(listener.heard).encode())]
    assert not found(planted, written(data), arguments(), exported(archive), events)

    # Under the next server, whose tokens are others.
    server.stop()
    second = tokens()
    del second["SLURM_JOB_ID"]
    server.env = {k: v for k, v in server.env.items() if k not in VARIABLES} | second
    server.start()
    planted |= {f"second {name}": value for name, value in second.items()}
    page = server.page(page.kernel_id)
    told = page.run("print(x)\n" + DIGESTS).split()
    assert told == ["1", *digests([*second.values(), "", planted[OTHER]])]
    assert connection_key(server, page.kernel_id) == key

    # Nobody is left who knew the key of a kernel that runs.
    kill_daemon(server)
    server.kill()
    server.start()
    page = server.page(page.kernel_id)
    assert page.run("print(x + 1)") == "2\n"
    server.do("suspend", page.kernel_id)
    logs = [(server.log_path, server.log_path.read_bytes())]
    assert not found(planted, written(data), arguments(), logs)


def test_a_branch_knows_the_key_that_no_record_has(clean_server):
    server = clean_server
    data = Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"])
    page = server.open()
    page.run("x = 5")
    planted = {"key": connection_key(server, page.kernel_id)}
    snapshot_id = server.do("save", page.kernel_id)["result"]["snapshot_id"]
    made = server.request("POST", f"api/gpuckpt/snapshots/{snapshot_id}/branch", json={}).json()
    assert server.finish(made)["state"] == "succeeded"
    assert server.page(made["kernel_id"]).run("print(x)") == "5\n"
    assert not found(planted, written(data), arguments())
