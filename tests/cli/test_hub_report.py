"""`jupyter gpuckpt hub-report` against answers of a hub; tests/hub has a real one."""

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import msgspec
import pytest

from jupyter_gpuckpt.cli.app import main
from jupyter_gpuckpt.wire.hub_records import USAGE, WAITING, Usage, Waiting, WaitingKernel

HOUR, GB = 3600, 10**9


def state(*kernels, **usage):
    return {
        WAITING: msgspec.to_builtins(Waiting.of(list(kernels))),
        USAGE: msgspec.to_builtins(Usage(**usage)),
    }


@pytest.fixture
def hub(monkeypatch):
    """Serve pages of users; return the pages and the API's URL."""
    pages = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.headers["Authorization"] == "token secret"
            offset = int(self.path.rpartition("offset=")[2])
            following = {"offset": offset + 1} if offset + 1 < len(pages) else None
            status, body = 200, {"items": [], "_pagination": {"next": following}}
            if isinstance(pages[offset], int):
                status, body = pages[offset], {"message": "no"}
            else:
                body["items"] = pages[offset]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_):
            pass

    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield pages, f"--hub-url=http://127.0.0.1:{server.server_port}/hub/api"
        server.shutdown()
        thread.join()


def test_it_lists_who_holds_what_over_all_pages(hub, capsys):
    pages, url = hub
    now = time.time()
    small = state(WaitingKernel("a", GB), at=now - 60, disk_bytes=GB // 2)
    big = state(
        *(WaitingKernel("b", 30 * GB, 20 * GB), WaitingKernel("c", GB)),
        at=now - 2 * HOUR,
        disk_bytes=9 * GB,
    )
    runs = state(at=now - 5 * HOUR, disk_bytes=GB, limit_bytes=GB // 2)
    pages += [
        [
            {"name": "ann", "servers": {"": {"name": "", "stopped": True, "state": small}}},
            {"name": "idle", "servers": {"": {"name": "", "ready": True, "state": {"pid": 1}}}},
            {"name": "none"},
        ],
        [
            {
                "name": "bob",
                "servers": {
                    "": {"name": "", "stopped": True, "state": big},
                    "lab": {"name": "lab", "ready": True, "state": runs},
                },
            }
        ],
    ]
    assert main(["hub-report", url]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1][:10] == [
        "bob",
        "-",
        "stopped",
        "2",
        "11.0",
        "GB",
        "20.0",
        "GB",
        "9.0",
        "GB",
    ]
    assert lines[2][:4] == ["ann", "-", "stopped", "1"]
    assert lines[3][:4] == ["bob", "lab", "running", "0"]
    assert lines[3][8:13] == ["1.0", "GB", "of", "500.0", "MB"]
    assert lines[4] == ["total", "3", "12.0", "GB", "20.0", "GB", "10.5", "GB"]
    assert main(["hub-report", "--json", url]) == 0
    assert [one["user"] for one in json.loads(capsys.readouterr().out)["servers"]] == [
        *("bob", "ann", "bob")
    ]


def test_a_state_that_is_not_visible_is_said(hub, capsys):
    pages, url = hub
    pages.append([{"name": "ann", "servers": {"": {"name": "", "stopped": True}}}])
    assert main(["hub-report", url]) == 0
    said = capsys.readouterr()
    assert "No server holds" in said.out
    assert "admin:server_state" in said.err


def test_refusals_name_cause_and_remedy(hub, capsys, monkeypatch):
    pages, url = hub
    pages.append(403)
    assert main(["hub-report", url]) != 0
    assert "scopes list:users" in capsys.readouterr().err
    pages[0] = 404
    assert main(["hub-report", url]) != 0
    assert "--hub-url" in capsys.readouterr().err
    assert main(["hub-report", "--hub-url=http://127.0.0.1:1/hub/api"]) != 0
    assert "cannot be reached" in capsys.readouterr().err
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN")
    assert main(["hub-report", url]) != 0
    assert "JUPYTERHUB_API_TOKEN" in capsys.readouterr().err
