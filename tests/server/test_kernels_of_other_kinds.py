"""Kernels without an agent that use libzmq as it is: a ROUTER keeps a client's name until it has dealt with the end of its connection.

It ignores a second client of the same name until then, for ever. ipykernel asks for another behavior (ROUTER_HANDOVER); xeus, IRkernel
and others do not.
"""

import json
import sys
from pathlib import Path

import pytest

#: A kernel that looks at its sockets now and then only, so that commands of libzmq pile up. It joins the lines of cells, asks for one, or
#: gives the routing id of the request.
PLAIN = """
import json, sys, threading, time, zmq
from jupyter_client.session import Session

told = json.load(open(sys.argv[1]))
context = zmq.Context()
session = Session(key=told["key"].encode(), signature_scheme=told["signature_scheme"])

def bound(name, kind):
    socket = context.socket(kind)
    socket.bind(f"{told['transport']}://{told['ip']}:{told[name + '_port']}")
    return socket

shell, control, stdin = (bound(name, zmq.ROUTER) for name in ("shell", "control", "stdin"))
iopub, heartbeat = bound("iopub", zmq.PUB), bound("hb", zmq.REP)
threading.Thread(target=zmq.proxy, args=(heartbeat, heartbeat), daemon=True).start()
lines = []

def reply(socket, identities, request, kind, content):
    session.send(socket, kind, content, parent=request, ident=identities)

def publish(request, kind, content):
    session.send(iopub, kind, content, parent=request)

def line_of(request, identities):
    code = request["content"]["code"]
    if code == "who":
        return identities[0].decode()
    if code != "ask":
        return code
    reply(stdin, identities, request, "input_request", {"prompt": "?", "password": False})
    return session.recv(stdin, mode=0)[1]["content"]["value"]

def handle(socket, identities, request):
    publish(request, "status", {"execution_state": "busy"})
    kind = request["msg_type"]
    if kind == "kernel_info_request":
        info = {"name": "plain", "mimetype": "text/plain", "file_extension": ".txt", "version": "1"}
        content = {"protocol_version": "5.3", "implementation": "plain", "implementation_version": "1", "banner": "", "language_info": info}
        reply(socket, identities, request, "kernel_info_reply", {"status": "ok", **content})
    elif kind == "execute_request":
        lines.append(line_of(request, identities))
        publish(request, "stream", {"name": "stdout", "text": " ".join(lines) + "\\n"})
        content = {"status": "ok", "execution_count": len(lines), "user_expressions": {}, "payload": []}
        reply(socket, identities, request, "execute_reply", content)
    elif kind == "shutdown_request":
        reply(socket, identities, request, "shutdown_reply", request["content"])
        raise SystemExit
    publish(request, "status", {"execution_state": "idle"})

while True:
    time.sleep(0.3)
    for socket in (control, shell):
        while socket.poll(0):
            handle(socket, *session.recv(socket))
"""


@pytest.fixture
def server(shared_server):
    """Return a server that other tests of this file use as well."""
    return shared_server


@pytest.fixture
def opened(server, request):
    """Return the page of a notebook with such a kernel."""
    folder = Path(server.env["JUPYTER_DATA_DIR"]) / "kernels" / "plain"
    folder.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-c", PLAIN, "{connection_file}"]
    spec = {"argv": argv, "display_name": "Plain", "language": "plain"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    return server.open(f"{request.node.name}.ipynb", kernel="plain")


def test_its_page_is_answered_after_each_resume(server, opened):
    said = ""
    for line in ("one", "two", "three"):
        said = f"{said} {line}".strip()
        assert opened.run(line) == f"{said}\n"
        server.do("suspend", opened.kernel_id)


def test_a_page_that_connects_again_after_a_resume_has_the_same_routing_id(server, opened):
    """A reply is for the routing id of its request. With another page the server keeps no sockets of one that leaves."""
    assert opened.run("who") == f"{opened.client_id}\n"
    server.do("suspend", opened.kernel_id)
    renewed = opened.run("who").split()[-1]
    assert renewed != opened.client_id
    other = server.page(opened.kernel_id)
    opened.close()
    for _ in range(2):  # the kernel deals with the end of the first page's sockets meanwhile
        other.run("who")
    again = server.page(opened.kernel_id, client_id=opened.client_id)
    assert again.run("who").split()[-1] == renewed


def test_it_asks_the_page_for_input_after_a_resume(server, opened):
    assert opened.run("one") == "one\n"
    server.do("suspend", opened.kernel_id)
    cell = opened.send("execute_request", {"code": "ask", "silent": False, "allow_stdin": True})
    opened.wait_for(lambda message: message["msg_type"] == "input_request")
    opened.send("input_reply", {"value": "two"}, "stdin")
    assert opened.output(cell) == "one two\n"
