"""How the chart zero-to-jupyterhub hands its values to the hub, for the values that we print."""

from __future__ import annotations

from typing import Any


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
