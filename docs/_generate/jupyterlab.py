"""The commands, shortcuts and settings of the JupyterLab extension, from its sources and schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .markdown import code, table

EXTENSION = Path(__file__).parents[2] / "labextension"


def commands() -> str:
    """Return the table of the commands on a session: name, description, shortcut."""
    source = (EXTENSION / "src" / "kernel" / "commands.ts").read_text()
    ids = dict(re.findall(r"^ {2}(\w+): '(gpuckpt:[\w-]+)'", source, re.MULTILINE))
    labels, captions = _texts(source, "actionLabel"), _texts(source, "actionCaption")
    keys = {
        one["command"]: " ".join(one["keys"])
        for one in _schema("commands")["jupyter.lab.shortcuts"]
    }
    return table(
        ["Command", "What it does", "Shortcut", "Id"],
        [
            (labels[action], f"{captions[action]}.", keys.get(name, ""), code(name))
            for action, name in ids.items()
        ],
    )


def settings() -> str:
    """Return the table of the settings in JupyterLab."""
    return table(
        ["Setting", "Choices", "Default"],
        [
            (
                f"**{one['title']}**: {one['description']}"
                if "description" in one
                else f"**{one['title']}**",
                _choices(one),
                _default(one),
            )
            for one in _schema("settings")["properties"].values()
        ],
    )


def _texts(source: str, function: str) -> dict[str, str]:
    """Return the text for each action in a function of the form `const texts = {action: trans.__('...')}`."""
    body = source[source.index(f"function {function}(") :].split("\n}\n", 1)[0]
    return dict(re.findall(r"(\w+):\s*trans\.__\(\s*'([^']*)'", body))


def _choices(setting: dict[str, Any]) -> str:
    if "oneOf" in setting:
        return "; ".join(one["title"] for one in setting["oneOf"])
    return "on, off" if setting["type"] == "boolean" else setting["type"]


def _default(setting: dict[str, Any]) -> str:
    value = setting["default"]
    if "oneOf" in setting:
        return next(one["title"] for one in setting["oneOf"] if one["const"] == value)
    return {True: "on", False: "off"}.get(value, str(value))


def _schema(name: str) -> dict[str, Any]:
    return json.loads((EXTENSION / "schema" / f"{name}.json").read_text())
