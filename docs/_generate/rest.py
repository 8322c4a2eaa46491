"""The REST interface, from its OpenAPI description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jupyter_gpuckpt.server.rest.openapi import PREFIX, description
from jupyter_gpuckpt.server.rest.routes import ROUTES

from .markdown import code, escaped, sentence, table

_METHODS = ("get", "put", "post", "patch", "delete")


def page() -> str:
    """Return the table of all paths, a section for each of them, and the records."""
    told = description(ROUTES)
    requests = list(_requests(told))
    overview = table(
        ["Request", "What it does"],
        [
            (f"[{code(f'{method.upper()} {path}')}](#{_anchor(method, path)})", _summary(operation))
            for method, path, operation in requests
        ],
    )
    sections = [
        _section(method, path, operation, told["paths"][path].get("parameters", []))
        for method, path, operation in requests
    ]
    records = [_record(name, schema) for name, schema in sorted(_schemas(told).items())]
    return "\n\n".join(
        [
            overview,
            f"## Requests\n\nAll paths are below `{PREFIX}`.",
            *sections,
            "## Records",
            *records,
        ]
    )


def _requests(told: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in told["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield method, path, methods[method]


def _section(
    method: str, path: str, operation: dict[str, Any], in_path: list[dict[str, Any]]
) -> str:
    parts = [
        f"({_anchor(method, path)})=\n### `{method.upper()} {path}`",
        _summary(operation),
    ]
    rows = [
        (code(one["name"]), one["in"], escaped(sentence(one.get("description", ""))))
        for one in [*in_path, *operation.get("parameters", [])]
    ]
    if rows:
        parts.append(table(["Parameter", "In", "Meaning"], rows))
    if "requestBody" in operation:
        parts.append(f"Body: {_content(operation['requestBody'])}.")
    for status, answer in operation["responses"].items():
        if status != "default":
            held = f": {_content(answer)}" if "content" in answer else ""
            parts.append(f"Answer: {status} {answer['description']}{held}.")
    return "\n\n".join(parts)


def _record(name: str, schema: dict[str, Any]) -> str:
    parts = [
        f"(rest-{name.lower()})=\n### {_short(name)}",
        escaped(sentence(schema.get("description", ""))),
    ]
    if "enum" in schema:
        parts.append("One of " + ", ".join(code(str(one)) for one in schema["enum"]) + ".")
    needed = schema.get("required", [])
    rows = [
        (
            code(field),
            _kind(one),
            "" if field in needed else "optional",
            escaped(sentence(one.get("description", ""))),
        )
        for field, one in schema.get("properties", {}).items()
    ]
    if rows:
        parts.append(table(["Field", "Type", "", "Meaning"], rows))
    return "\n\n".join(part for part in parts if part)


def _content(body: dict[str, Any]) -> str:
    ((media, held),) = body["content"].items()
    kind = _kind(held["schema"])
    return kind if media == "application/json" else f"{code(media)}"


def _kind(schema: dict[str, Any]) -> str:
    """Return the name of a type, with a link if it is a record."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{_short(name)}](#rest-{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(code(str(one)) for one in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    return str(kind)


def _short(name: str) -> str:
    """Return a record's name without its module, which the description puts before a name that two records have."""
    return name.rsplit(".", 1)[-1]


def _schemas(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return told["components"]["schemas"]


def _summary(operation: dict[str, Any]) -> str:
    return escaped(sentence(operation["summary"]))


def _anchor(method: str, path: str) -> str:
    words = path.replace("{", "").replace("}", "").replace("_", "-").replace(".", "-").strip("/")
    return f"{method}-{words.replace('/', '-')}"
