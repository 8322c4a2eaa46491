"""The REST interface: who may ask what, what is refused and how, and its description."""

import json
import re
from pathlib import Path

import pytest

from jupyter_gpuckpt.server.rest.openapi import PREFIX
from jupyter_gpuckpt.server.rest.routes import ROUTES
from jupyter_gpuckpt.wire.remote_records import Remote, RemoteVerb
from tests.remote.installations import ask as ask_remotes
from tests.remote.joined import join
from tests.server.conftest import Server
from tests.server.contract import DOCUMENT, described

METHODS = ("get", "put", "post", "patch", "delete")

CASES = [
    (method, route)
    for route, handler in ROUTES.items()
    for method in METHODS
    if method in vars(handler)
]

#: Allows the pairs of action and resource that a file lists, which the test writes.
AUTHORIZER = """
import json, os
from jupyter_server.auth import Authorizer

class Rules(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        if resource not in ("gpuckpt", "kernels"):
            return True
        with open(os.environ["TEST_RULES"]) as file:
            return [action, resource] in json.load(file)
"""


def filled(route):
    return "api/gpuckpt" + re.sub(r"{\w+}", "5b5c3f6e-aaaa-bbbb-cccc-000000000000", route)


def action_of(method):
    return "read" if method == "get" else "write"


@pytest.fixture
def server(clean_server):
    return clean_server


@pytest.fixture(scope="module")
def ruled_server(module_daemon_env, tmp_path_factory):
    """Yield a server that asks a file what is allowed."""
    folder = tmp_path_factory.mktemp("ruled")
    (folder / "gpuckpt_test_rules.py").write_text(AUTHORIZER)
    (folder / "rules.json").write_text("[]")
    own = {
        "PYTHONPATH": str(folder),
        "TEST_RULES": str(folder / "rules.json"),
        "PYTHONWARNINGS": "always",
    }
    made = Server(
        folder,
        module_daemon_env | own,
        "--ServerApp.authorizer_class=gpuckpt_test_rules.Rules",
        "--ServerApp.allow_unauthenticated_access=False",
    )
    yield made.start()
    made.kill()


@pytest.fixture
def ruled(ruled_server):
    """Return the server and a function that sets what it allows."""

    def allow(*pairs):
        Path(ruled_server.env["TEST_RULES"]).write_text(json.dumps(pairs))

    allow()
    return ruled_server, allow


def test_only_those_may_ask_who_are_allowed_to(ruled):
    server, allow = ruled
    for method, route in CASES:
        action = action_of(method)
        others = {"read", "write", "execute"} - {action}
        allow(*((other, "gpuckpt") for other in others), (action, "kernels"))
        response = server.request(method, filled(route), ok=False)
        assert response.status_code == 403, (method, route)
        assert response.json()["code"] == "http_403"
        allow((action, "gpuckpt"))
        response = server.request(method, filled(route), ok=False)
        assert response.status_code != 403, (method, route)


def test_nobody_may_ask_without_a_token(ruled, monkeypatch):
    server, allow = ruled
    allow(*((action, "gpuckpt") for action in ("read", "write", "execute")))
    monkeypatch.setattr(server, "token", "wrong")
    for method, route in CASES:
        response = server.request(method, filled(route), ok=False)
        assert response.status_code == 403, (method, route)


def test_every_route_asks_who_it_is(ruled):
    server, _ = ruled
    log = server.log_path.read_text()
    assert "extension was successfully loaded" in log
    # Other extensions may have such routes; the warning's header alone says nothing.
    assert f"registered for {PREFIX}" not in log


def test_what_is_not_there_is_404_with_a_code(server):
    for method, route in CASES:
        if "{" in route:
            status, body = server.refused(method, filled(route).removeprefix("api/gpuckpt/"))
            kind = re.search(r"{(\w+?)(_id)?}", route)[1]
            assert (status, body["code"]) == (404, f"{kind}_not_found"), (method, route)
            assert body["message"].endswith(".")


def test_an_encoded_slash_never_leads_to_another_route(server):
    kernel_id = server.open().kernel_id
    for way in (f"..%2Fkernels%2F{kernel_id}", f"x%2F..%2F..%2Fkernels%2F{kernel_id}", "%00"):
        for method, rest in (("DELETE", ""), ("GET", ""), ("GET", "/export"), ("POST", "/verify")):
            status, body = server.refused(method, f"snapshots/{way}{rest}")
            assert status == 404, (way, method, rest)
            assert body["code"] in {"snapshot_not_found", "http_404"}
    assert server.kernel(kernel_id)["state"] == "running"


def test_what_pages_and_hubs_request_by_themselves_is_no_activity(server):
    def activity():
        return server.get("api/status")["last_activity"]

    before = activity()
    for route in ("/kernels", "/kernels/{id}", "/shut_down", "/snapshots", "/store", "/notices"):
        server.request("GET", filled(route), ok=False)
        assert activity() == before, route
    server.get("api/gpuckpt/openapi.json")
    assert activity() > before


def test_a_body_that_makes_no_sense_is_400(server):
    for verb in ("save", "suspend", "resume"):
        for body in ("{", "[]", '{"nmae": "x"}', '{"name": 1, "snapshot_id": 1}'):
            path = filled(f"/kernels/{{id}}/{verb}").removeprefix("api/gpuckpt/")
            status, answer = server.refused("POST", path, content=body)
            assert (status, answer["code"]) == (400, "configuration"), (verb, body)
            assert "openapi.json" in answer["hint"]
    status, _ = server.refused("GET", "operations/x?wait=soon")
    assert status == 400


def test_the_host_is_described(server):
    report = server.get("api/gpuckpt/host")
    assert report["engine_available"] is True
    assert {"name", "ok", "message", "fix", "required"} == set(report["checks"][0])


def test_the_description_is_served(server):
    assert server.get("api/gpuckpt/openapi.json") == DOCUMENT


def test_the_description_refers_to_nothing_that_it_lacks():
    def references(part):
        if isinstance(part, dict):
            for key, value in part.items():
                if key == "$ref":
                    yield value
                yield from references(value)
        elif isinstance(part, list):
            for value in part:
                yield from references(value)

    for reference in set(references(DOCUMENT)):
        found = DOCUMENT
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]


def test_every_answer_is_as_it_is_described(server, tmp_path):
    """`Server.request` compares each answer with the description; here are all kinds of answers at least once."""
    page = server.open()
    page.run("x = 1")
    kernel = f"kernels/{page.kernel_id}"
    snapshot_id = server.do("save", page.kernel_id, name="kept")["result"]["snapshot_id"]
    snapshot = f"snapshots/{snapshot_id}"
    asked = set()

    def ask(method, path, **arguments):
        asked.add(id(described(method, f"api/gpuckpt/{path}")))
        return server.request(method, f"api/gpuckpt/{path}", **arguments)

    for path in ("kernels", kernel, f"{kernel}/variables", "snapshots", snapshot, "store", "host"):
        ask("GET", path)
    for path in (f"{snapshot}/changes", f"{snapshot}/notebook"):
        ask("GET", path)
    for path in (f"{snapshot}/compare?kernel_id={page.kernel_id}", "templates"):
        ask("GET", path)
    ask("GET", f"compare?first={snapshot_id}&second={page.kernel_id}")
    ask("POST", "templates", ok=False, json={"name": "made", "snapshot_id": "f" * 32})
    ask("DELETE", f"{kernel}/branch", ok=False)  # It is no branch.
    ask("POST", f"{kernel}/keep_running")
    ask("POST", f"{kernel}/expect_cell")
    ask("POST", f"{kernel}/keep_saving")
    ask("PATCH", snapshot, json={"title": "a title", "pinned": False})
    ask("POST", f"{snapshot}/verify")
    archive = ask("GET", f"{snapshot}/export").content
    (tmp_path / "archive").write_bytes(archive)
    data_dir = Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"])
    share = join(data_dir, Remote("share", f"file://{tmp_path}/share"))
    share.upload_archive(tmp_path / "archive", tmp_path / "uploads")
    for path in ("remotes", "remotes/share/sessions", f"remotes/share/{snapshot}"):
        ask("GET", path)
    ask("POST", f"remotes/share/{snapshot}/fetch", ok=False)
    ask_remotes(RemoteVerb.REMOVE, data_dir, "share")
    for path in ("remotes/test", "remotes"):
        ask("POST", path, json={"name": "made", "url": f"file://{tmp_path}/made"})
    ask("POST", "remotes/made/line")
    ask_remotes(RemoteVerb.REMOVE, data_dir, "made")
    ask("DELETE", snapshot)
    ask("GET", "snapshots?deleted=1")
    ask("POST", f"{snapshot}/undelete")
    ask("POST", "snapshots/prune", json={"policy": {"keep_last": 1}, "dry_run": True})
    branch = ask("POST", f"{snapshot}/branch", json={}).json()
    ask("GET", f"operations/{branch['operation_id']}?wait=60")
    beside = ask("POST", f"{snapshot}/resume", json={"path": "beside.ipynb"}).json()
    assert ask("GET", f"operations/{beside['operation_id']}?wait=60").json()["error"] is None
    ask("POST", "suspend_all", json={"within": 100})
    for verb, body in (("resume", {}), ("suspend", {"name": "again"})):
        begun = ask("POST", f"{kernel}/{verb}", json=body).json()
        ask("GET", f"operations/{begun['operation_id']}?wait=60")
        # It is over.
        assert ask("POST", f"operations/{begun['operation_id']}/cancel").json()["error"] is None
    ask("GET", "shut_down")
    ask("GET", "notices")
    ask("GET", "openapi.json")
    for method, path in (
        ("POST", f"{kernel}/park"),
        ("POST", f"{kernel}/move"),
        ("POST", f"{kernel}/undo_restart"),
        ("POST", f"{kernel}/undo_shutdown"),
        ("POST", "snapshots/import"),
        ("POST", f"{kernel}/roll_back"),
        ("POST", f"{kernel}/save"),
    ):
        content = archive if "import" in path else b"{}"
        ask(method, path, ok=False, content=content)
    all_of_them = {id(item[m]) for item in DOCUMENT["paths"].values() for m in METHODS if m in item}
    assert asked == all_of_them
