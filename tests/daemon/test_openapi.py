"""openapi.yaml says what the daemon does."""

from pathlib import Path

import msgspec
import pytest
import yaml

from jupyter_gpuckpt import errors, model, protocol, snapshot_records
from jupyter_gpuckpt.daemon import app
from jupyter_gpuckpt.daemon.base_handler import BaseHandler
from jupyter_gpuckpt.daemon.handlers import ROUTES

METHODS = ("get", "post", "put", "delete", "patch")
DOCUMENT = yaml.safe_load(Path(app.__file__).with_name("openapi.yaml").read_text())
SCHEMAS = DOCUMENT["components"]["schemas"]


def served():
    return {
        (path, method)
        for path, handler in ROUTES.items()
        for method in METHODS
        if getattr(handler, method) is not getattr(BaseHandler, method)
    }


def test_it_lists_exactly_the_routes_that_are_served():
    listed = {
        (path, method)
        for path, item in DOCUMENT["paths"].items()
        for method in item
        if method in METHODS
    }
    assert listed == served()


def test_every_reference_leads_somewhere():
    def references(node):
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "$ref":
                    yield value
                else:
                    yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    for reference in set(references(DOCUMENT)):
        node = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


@pytest.mark.parametrize("name", SCHEMAS)
def test_components_have_the_fields_of_our_records(name):
    kind = next(
        getattr(m, name) for m in (protocol, snapshot_records, model, errors) if hasattr(m, name)
    )
    _, components = msgspec.json.schema_components(
        [kind], ref_template="#/components/schemas/{name}"
    )
    ours, theirs = components[name], SCHEMAS[name]
    assert set(theirs.get("properties", ())) == set(ours.get("properties", ()))
    assert set(theirs.get("required", ())) == set(ours.get("required", ()))
    assert theirs.get("enum") == ours.get("enum")
