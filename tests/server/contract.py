"""Check of every answer that a test gets from the REST interface against the interface's OpenAPI description."""

import re

import jsonschema

from jupyter_gpuckpt.server.rest.openapi import description
from jupyter_gpuckpt.server.rest.routes import ROUTES

DOCUMENT = description(ROUTES)
_PREFIX = "api/gpuckpt/"


def described(method, path):
    """Return the description of a method of a path; None where there is none."""
    wanted = path.split("?")[0].removeprefix(_PREFIX)
    for route in ROUTES:
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", route).lstrip("/"), wanted):
            return DOCUMENT["paths"][route].get(method.lower())
    return None


def check(method, path, response):
    """Fail if an answer is not as it is described."""
    found = described(method, path) if path.startswith(_PREFIX) else None
    if found is None:
        return
    answers = found["responses"]
    if response.is_success:
        assert str(response.status_code) in answers, (method, path, response.status_code)
    content = answers.get(str(response.status_code), answers["default"]).get("content")
    if content is None:
        assert not response.content, (method, path)
    elif "application/json" in content:
        schema = {**content["application/json"]["schema"], "components": DOCUMENT["components"]}
        jsonschema.Draft202012Validator(schema).validate(response.json())
    else:
        assert response.headers["content-type"] in content
