"""The OpenAPI description of the REST interface, generated from the records of its requests and responses.

`answers` declares them at each method. `python -m jupyter_gpuckpt.server.rest` prints the description, which a server
has at /api/gpuckpt/openapi.json.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from ..rest_records import ErrorView

PREFIX = "/api/gpuckpt"
#: The stand-in type for the bytes of an archive, in a request or a response.
ARCHIVE = bytes

_METHODS = ("get", "put", "post", "patch", "delete")
_ABOUT = """\
Save, suspend and resume the kernels of a Jupyter server. Authentication and authorization are the server's (resource
`gpuckpt`: `read` for GET, `write` for all others). Changes of kernels come as events of the schema
https://events.jupyter.org/jupyter_gpuckpt/kernel/v1, whose data is a `KernelView`. Sizes are bytes, times seconds.
"""

_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Contract:
    """The contract of a method: request and reply. `reply` None: no body. `query`: its arguments with their descriptions."""

    reply: Any
    status: HTTPStatus = HTTPStatus.OK
    request: Any = None
    query: Mapping[str, str] = field(default_factory=dict)


def answers(
    reply: Any,
    status: HTTPStatus = HTTPStatus.OK,
    *,
    request: Any = None,
    query: Mapping[str, str] | None = None,
) -> Callable[[_Method], _Method]:
    """Declare the request and reply of a handler's method; `GpuCkptHandler.reply` uses the status."""

    def stated(method: _Method) -> _Method:
        method.contract = Contract(reply, status, request, query or {})  # type: ignore[attr-defined] # a function's own
        return method

    return stated


def contract_of(handler: type, method: str) -> Contract:
    """Return the contract of a method."""
    contract: Contract = getattr(handler, method).contract
    return contract


def description(routes: Mapping[str, type]) -> dict[str, Any]:
    """Return the description of these routes."""
    methods = {
        (route, method): contract_of(handler, method)
        for route, handler in routes.items()
        for method in _METHODS
        if method in vars(handler)
    }
    kinds = [kind for each in methods.values() for kind in (each.reply, each.request) if kind]
    records = list(
        {str(kind): kind for kind in [ErrorView, *kinds] if kind is not ARCHIVE}.values()
    )
    schemas, components = msgspec.json.schema_components(
        records, ref_template="#/components/schemas/{name}"
    )
    known = {str(kind): schema for kind, schema in zip(records, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for (route, method), contract in methods.items():
        paths.setdefault(route, _path(route))[method] = _operation(
            getattr(routes[route], method), contract, known
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
    method: Callable[..., Any], contract: Contract, known: Mapping[str, Any]
) -> dict[str, Any]:
    error = {"description": "It cannot be done.", "content": _content(ErrorView, known)}
    answer: dict[str, Any] = {"description": contract.status.phrase}
    if contract.reply is not None:
        answer["content"] = _content(contract.reply, known)
    operation: dict[str, Any] = {
        "summary": (method.__doc__ or "").strip().splitlines()[0],
        "responses": {str(contract.status.value): answer, "default": error},
    }
    if contract.request is not None:
        operation["requestBody"] = {"content": _content(contract.request, known)}
    if contract.query:
        operation["parameters"] = [
            {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
            for name, text in contract.query.items()
        ]
    return operation


def _content(kind: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    if kind is ARCHIVE:
        return {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}
    return {"application/json": {"schema": known[str(kind)]}}
