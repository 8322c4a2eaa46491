"""Today's hub asks a server of 0.1.0 as that expects it, and reads its answers: hub and servers are upgraded at different times.

When one of these fails, let `hub/server_request.py` ask and read as before; `hub.json` of a released version never changes.
`tests/server/test_older_hubs.py` is the other direction. The states of spawners in a hub's database outlive an upgrade of the hub, too.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from jupyter_gpuckpt.errors import GpuCkptError
from jupyter_gpuckpt.hub import server_request, with_suspend
from jupyter_gpuckpt.wire.hub_records import SpawnerState

RECORDED = sorted(Path(__file__).parent.glob("*/hub.json"))


@pytest.fixture(params=RECORDED, ids=[path.parent.name for path in RECORDED])
def recorded(request):
    return json.loads(request.param.read_text())


@pytest.fixture
def server(recorded) -> Iterator[tuple[str, list[dict]]]:
    """Yield the address of a user's server that answers as one did, and the questions that it gets."""
    heard: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            question = {
                "method": self.command,
                "path": self.path,
                "authorization": self.headers["Authorization"],
                "body": json.loads(body),
            }
            heard.append(question)
            accepted = question["authorization"] == recorded["request"]["authorization"]
            answer = recorded["answer" if accepted else "refused"]
            content = json.dumps(answer["body"]).encode()
            self.send_response(answer["status"])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self):
            heard.append({"method": self.command, "path": self.path})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"disk_bytes": 7}')

        def log_message(self, *words):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/user/ada/", heard
        http.shutdown()
        thread.join()


def test_the_question_is_the_recorded_one_and_the_answer_is_read(server, recorded):
    url, heard = server
    asked = recorded["request"]
    within = asked["body"]["within"]
    report = asyncio.run(server_request.suspend_all(within, url, ["wrong", "TOKEN"]))
    assert heard == [{**asked, "authorization": "token wrong"}, asked]
    known = recorded["answer"]["body"]
    for found, kernel in zip(report.kernels, known["kernels"], strict=True):
        assert (found.kernel_id, found.name, found.saved) == (
            kernel["kernel_id"],
            kernel["name"],
            kernel["saved"],
        )
        assert (found.error.message if found.error else None) == (
            kernel["error"]["message"] if kernel["error"] else None
        )


def test_a_refusal_is_told(server):
    url, _ = server
    with pytest.raises(GpuCkptError, match="token"):
        asyncio.run(server_request.suspend_all(1.0, url, ["wrong"]))


def test_the_numbers_are_requested_without_counting_as_activity_of_the_user(server):
    """A server of 0.1.0 counts each request, unless the request says otherwise; a culler would then never stop it."""
    url, heard = server
    assert asyncio.run(server_request.usage(url, ["TOKEN"])).disk_bytes == 7
    path = "/user/ada/api/gpuckpt/store?no_track_activity=1"
    assert heard == [{"method": "GET", "path": path}]


def test_the_names_that_a_hub_of_0_1_0_has_stored_are_read_and_its_key_is_not_written():
    spawner = with_suspend("simple")()
    spawner.load_state({"gpuckpt_waiting": ["a.ipynb", "b.ipynb"]})
    state = spawner.get_state()
    waiting = SpawnerState.from_state(state).waiting
    assert waiting.count == 2
    assert [kernel.name for kernel in waiting.kernels] == ["a.ipynb", "b.ipynb"]
    # As names that hub would show the keys of a record.
    assert "gpuckpt_waiting" not in state
