"""A hub of 0.1.0 finds in this server's answers what it reads there: hub and servers are upgraded at different times.

When one of these fails, let the server answer the older question as before; `tests/compat/*/hub.json` of a released version never
changes.
"""

from __future__ import annotations

import json

import httpx
import pytest

from tests.compat.programs import HERE
from tests.programs import SANDBOX
from tests.server.conftest import NO_CERTIFICATES
from tests.server.page import TIMEOUT

RECORDED = sorted(HERE.glob("*/hub.json"))


@pytest.fixture(params=RECORDED, ids=[path.parent.name for path in RECORDED])
def recorded(request):
    return json.loads(request.param.read_text())


def asked(server, request, token):
    """Ask as the recorded request does, in every part that a server may look at."""
    path = request["path"].removeprefix("/user/ada/")
    return httpx.request(
        request["method"],
        f"http://127.0.0.1:{server.port}/{server.base}{path}",
        headers={"Authorization": request["authorization"].replace("TOKEN", token)},
        json=request["body"],
        timeout=TIMEOUT,
        verify=NO_CERTIFICATES,
    )


def assert_shaped(found, known):
    """Every field that is known is there, of the same type."""
    assert type(found) is type(known)
    if isinstance(known, dict):
        for name, value in known.items():
            assert_shaped(found[name], value)


def test_the_answer_has_every_field_of_the_recorded_one(clean_server, recorded):
    saved, refused = clean_server.open("saved.ipynb"), clean_server.open("refused.ipynb")
    saved.run("x = 41")
    refused.run(SANDBOX)
    response = asked(clean_server, recorded["request"], clean_server.token)
    answer = recorded["answer"]
    assert response.status_code == answer["status"]
    by_name = {kernel["name"]: kernel for kernel in response.json()["kernels"]}
    assert_shaped({**response.json(), "kernels": []}, {**answer["body"], "kernels": []})
    for known in answer["body"]["kernels"]:
        found = by_name[known["name"]]
        assert_shaped(found, known)
        assert found["saved"] == known["saved"]
        if known["error"]:
            assert found["error"]["code"] == known["error"]["code"]
    assert saved.run("print(x)") == "41\n"


def test_a_wrong_token_is_refused_as_it_was(clean_server, recorded):
    response = asked(clean_server, recorded["request"], "wrong")
    assert response.status_code == recorded["refused"]["status"]
    assert_shaped(response.json(), recorded["refused"]["body"])
