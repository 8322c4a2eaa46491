"""Whatever the daemon or a Jupyter server is asked by somebody who may: it answers, and never that it is broken."""

import re
from contextlib import ExitStack, suppress

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpuckpt.client import Client, starting, this_owner, transport
from jupyter_gpuckpt.daemon.http.kernel_routes import ROUTES
from jupyter_gpuckpt.server.rest.openapi import PREFIX
from jupyter_gpuckpt.server.rest.routes import ROUTES as SERVER_ROUTES
from jupyter_gpuckpt.wire import daemon_settings
from jupyter_gpuckpt.wire.protocol import OwnerKind
from tests.fuzz.inputs import altered, distorted, tries
from tests.server.conftest import Server

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "FOO")
IDS = [
    "x",
    "..",
    "%2E%2E",
    "..%2Fkernels",
    "%00",
    "%ff",
    "%",
    "-",
    "a" * 200,
    "é",
    "a%2Fb",
    "ID",
    "ID",
    "ID",
]
QUERIES = [
    "",
    "",
    "?wait=0",
    "?wait=nan",
    "?wait=-1",
    "?kernel_id=%ff",
    "?path=%00",
    "?deleted=1",
    "?snapshot_id=../x",
    "?%",
]
BODIES = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b'{"name": "x", "jupyter": {"a": [1]}}',
    b'{"signum": 0}',
    b'{"after_seconds": 1000}',
    b'{"title": "t", "note": "n", "pinned": true}',
    b'{"policy": {"keep_last": 1, "keep_within_seconds": 1, "max_bytes": 1}, "dry_run": true}',
    b'{"snapshot_id": "SNAPSHOT_ID"}',
    b'{"owner_id": "OWNER_ID", "snapshot_id": "SNAPSHOT_ID", "kernel_id": "y", "own_ports": [1], "name": "", "jupyter": {}}',
    b'{"path": "a.ipynb"}',
    b'{"within": 0}',
    b'{"owner_id": "OWNER_ID", "spec": {"kernel_id": "k", "argv": ["/bin/true"], "env": {}, "cwd": "/", "log_path": "/dev/null"}}',
]
#: A stream that ends when we go, and what asks for all that there is to be suspended or kept waiting.
LEFT_OUT = {"/owners", "/suspend_all"}


def requests(routes):
    """Draw a request: method, path, body."""
    bodies = st.one_of(
        st.sampled_from(BODIES),
        altered(BODIES),
        distorted([msgspec.json.decode(body) for body in BODIES if body]).map(encoded),
    )
    offered = [
        (method.upper(), route)
        for route, handler in sorted(routes.items())
        for method in ("get", "post", "put", "patch", "delete")
        if method in vars(handler) and route not in LEFT_OUT
    ]
    others = [(method, route) for method in METHODS for _, route in offered]
    return st.tuples(
        st.one_of(st.sampled_from(offered), st.sampled_from(offered), st.sampled_from(others)),
        st.lists(st.sampled_from(IDS), min_size=2, max_size=2),
        st.sampled_from(QUERIES),
        bodies,
    )


def encoded(value):
    with suppress(TypeError, UnicodeDecodeError):
        return msgspec.json.encode(value)
    return b"{"


def filled(route, ids, known):
    """Return the route with an id of its kind for each ID."""
    left = iter(ids)

    def one(match):
        given = next(left)
        return known.get(match[1], given) if given == "ID" else given

    return re.sub(r"{(\w+)}", one, route)


def answered(ask):
    """Return an answer; ask again where a refusal came before the body was read, and the reset connection overtook it (RFC 9112, 9.6)."""
    for _ in range(20):
        with suppress(httpx.ReadError, httpx.WriteError):
            return ask()
    return ask()


def assert_answers(ask, asked, known):
    (method, route), ids, query, body = asked
    for name, one in known.items():
        body = body.replace(name.upper().encode(), one.encode())
    path = filled(route, ids, known) + query
    answer = answered(lambda: ask(method, path, body))
    # A program that was started and ended at once is lost, which has status 500 and is no defect.
    known_cause = answer.status_code < 500 or answer.json()["code"] == "kernel_lost"
    assert known_cause, (method, path, body, answer.status_code, answer.text)


@pytest.fixture(scope="module")
def known(module_daemon_env, tmp_path_factory):
    """Yield a Jupyter server and its daemon, and the ids of a kernel, of its snapshot and of the operation that took it."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name in ("JUPYTER_GPUCKPT_RUNTIME_DIR", "JUPYTER_GPUCKPT_DATA_DIR"):
            patch.setenv(name, module_daemon_env[name])
        made = Server(tmp_path_factory.mktemp("fuzz"), module_daemon_env)
        made.start()
        page = made.open()
        operation = made.do("save", page.kernel_id)
        settings = daemon_settings.from_environment(module_daemon_env)
        owner = this_owner(OwnerKind.SERVER, root_dir="/tmp")
        client = stack.enter_context(Client.connect(settings))
        stack.enter_context(client.hold(owner, lambda event: None))
        yield (
            made,
            {
                "owner_id": owner.owner_id,
                "kernel_id": page.kernel_id,
                "snapshot_id": operation["result"]["snapshot_id"],
                "operation_id": operation["operation_id"],
            },
        )
        made.kill()


@pytest.fixture(scope="module")
def daemon(known, module_daemon_env):
    settings = daemon_settings.from_environment(module_daemon_env)
    over_socket = transport.UnixTransport(starting.target(settings, start=True).socket)
    with httpx.Client(transport=over_socket, timeout=300, **transport.ANYWHERE) as http:
        yield lambda method, path, body: http.request(method, path, content=body)


@pytest.fixture(scope="module")
def server(known):
    made, _ = known
    base = f"http://127.0.0.1:{made.port}{PREFIX}"
    with httpx.Client(headers={"Authorization": f"token {made.token}"}, timeout=300) as http:
        yield lambda method, path, body: http.request(method, base + path, content=body)


@tries(0.04)
@given(requests(ROUTES))
def test_the_daemon_is_never_broken(daemon, known, asked):
    assert_answers(daemon, asked, known[1])


@tries(0.02)
@given(requests(SERVER_ROUTES))
def test_a_server_is_never_broken(server, known, asked):
    assert_answers(server, asked, known[1])
