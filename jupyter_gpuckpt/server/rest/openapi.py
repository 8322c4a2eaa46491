"""The OpenAPI description of the REST interface, generated from the records of its requests and responses.

Each method has its `Route`; lists in the docstrings of the records describe their fields. `python -m jupyter_gpuckpt.server.rest`
prints the description, which a server has at /api/gpuckpt/openapi.json.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

import msgspec

from ...wire.calls import ARCHIVE, Route
from ..rest_records import ErrorView

PREFIX = "/api/gpuckpt"
_METHODS = ("get", "put", "post", "patch", "delete")
_ABOUT = """\
Save, suspend and resume the kernels of a Jupyter server. Authentication and authorization are the server's (resource
`gpuckpt`: `read` for GET, `write` for all others). Changes of kernels come as events of the schema
https://events.jupyter.org/jupyter_gpuckpt/kernel/v1, whose data is a `KernelView`. Sizes are bytes, times seconds.
"""


def description(routes: Mapping[str, type]) -> dict[str, Any]:
    """Return the description of these routes."""
    methods = {
        (path, method): getattr(handler, method).route
        for path, handler in routes.items()
        for method in _METHODS
        if method in vars(handler)
    }
    kinds = [kind for each in methods.values() for kind in (each.reply, each.request)]
    no_records = (ARCHIVE, NoneType, None)
    records = list(
        {str(kind): kind for kind in [ErrorView, *kinds] if kind not in no_records}.values()
    )
    schemas, components = msgspec.json.schema_components(
        records, ref_template="#/components/schemas/{name}"
    )
    for schema in components.values():
        told = re.findall(r"^ *- `(\w+)`: (.*)$", schema.get("description", ""), re.MULTILINE)
        for name, text in told:
            schema["properties"][name] = {"description": text} | schema["properties"][name]
        if told:
            schema["description"] = re.split(r"\n\n *- `", schema["description"])[0]
    known = {str(kind): schema for kind, schema in zip(records, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for (path, method), route in methods.items():
        paths.setdefault(path, _path(path))[method] = _operation(
            getattr(routes[path], method), route, known
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Jupyter server extension jupyter_gpuckpt",
            "version": "1",
            "description": _ABOUT,
        },
        "servers": [{"url": PREFIX}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _path(route: str) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", route)
    string = {"type": "string"}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": string} for name in names
    ]
    return {"parameters": parameters} if parameters else {}


def _operation(
    method: Callable[..., Any], route: Route[Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    error = {"description": "It cannot be done.", "content": _content(ErrorView, known)}
    answer: dict[str, Any] = {"description": route.status.phrase}
    if route.reply is not NoneType:
        answer["content"] = _content(route.reply, known)
    operation: dict[str, Any] = {
        "summary": (method.__doc__ or "").strip().splitlines()[0],
        "responses": {str(route.status.value): answer, "default": error},
    }
    if route.request is not None:
        operation["requestBody"] = {"content": _content(route.request, known)}
    if route.query:
        operation["parameters"] = [
            {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
            for name, text in route.query.items()
        ]
    return operation


def _content(kind: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    if kind is ARCHIVE:
        return {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}
    return {"application/json": {"schema": known[str(kind)]}}
