"""The files of deploy/kubernetes, and how the chart zero-to-jupyterhub checks its values and hands them to the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import yaml

_FOLDER = Path(__file__).parent.parent.parent / "deploy/kubernetes"
_CHART = Path(__file__).parent / "zero_to_jupyterhub"


def documents(name: str) -> list[Any]:
    """Return the documents of a file."""
    return list(yaml.safe_load_all((_FOLDER / name).read_text()))


def document(name: str) -> Any:
    """Return the only document of a file."""
    (only,) = documents(name)
    return only


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return values changed by those of a later file, as helm does it."""
    both = [name for name in values.keys() & more.keys() if isinstance(more[name], dict)]
    return values | more | {name: merged(values[name], more[name]) for name in both}


def settings_of(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the hub's configuration, by class: `hub.config` as it is, and what the chart makes of `singleuser`."""
    user = values["singleuser"]
    storage = user["storage"]
    assert storage["type"] == "dynamic"
    settings: dict[str, dict[str, Any]] = {**values["hub"]["config"]}
    settings["KubeSpawner"] = {
        "image": f"{user['image']['name']}:{user['image']['tag']}",
        "cmd": user["cmd"],
        "uid": user["uid"],
        "fs_gid": user["fsGid"],
        "start_timeout": user["startTimeout"],
        "environment": user.get("extraEnv", {}),
        "extra_resource_limits": user.get("extraResource", {}).get("limits", {}),
        "storage_pvc_ensure": True,
        "storage_capacity": storage["capacity"],
        "pvc_name_template": "claim-{username}",
        "volumes": [
            {"name": "volume-{username}", "persistentVolumeClaim": {"claimName": "{pvc_name}"}}
        ],
        "volume_mounts": [{"name": "volume-{username}", "mountPath": storage["homeMountPath"]}],
    }
    return settings


def checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values merged into the chart's own, as helm does before it checks them with the chart's schema. Raises ValidationError."""
    own, schema = (
        json.loads((_CHART / name).read_text()) for name in ("values.json", "values.schema.json")
    )
    whole = merged(own, values)
    jsonschema.validate(whole, schema, jsonschema.Draft7Validator)
    return whole
