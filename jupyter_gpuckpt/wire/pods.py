"""The settings of pods in Kubernetes with which kernels can be saved and no suspend is cut short.

The spawner (hub/pod_spawner.py) and the files that `jupyter gpuckpt kubernetes` prints take them from here, as plain values.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Literal

from .hub_records import STOP_MARGIN_SECONDS

#: How a pod gets what kernels need: a user namespace of its own, or capabilities on the node.
Privileges = Literal["user-namespace", "capabilities"]
PRIVILEGES: tuple[Privileges, ...] = ("user-namespace", "capabilities")

#: The filter's file in the kubelet's folder of seccomp profiles, as `jupyter gpuckpt doctor --seccomp` is told to write it.
SECCOMP_FILE = "gpuckpt-seccomp.json"
#: That folder.
SECCOMP_FOLDER = "/var/lib/kubelet/seccomp"
SUSPEND_SECONDS = 60.0
#: The image of the pods that write the filter to the nodes.
NODE_IMAGE = "busybox:stable"
#: The user of the image that deploy/build-image builds, and where that user's snapshots are.
_USER, HOME = 1000, "/home/jovyan"
IMAGE = "jupyter-gpuckpt"
_PORT = 8888
#: The capabilities with which root can save kernels, even if parts of /proc are hidden.
_CAPABILITIES = ["SYS_ADMIN", "SYS_PTRACE", "SYS_TIME", "NET_ADMIN"]


def stop_seconds(suspend_seconds: float) -> int:
    """Return the seconds that a pod may take to end after it was asked to."""
    return math.ceil(suspend_seconds) + STOP_MARGIN_SECONDS


def pod_settings(privileges: Privileges, suspend_seconds: float) -> dict[str, Any]:
    """Return what the specification of a pod contains besides its containers."""
    settings: dict[str, Any] = {"terminationGracePeriodSeconds": stop_seconds(suspend_seconds)}
    if privileges == "user-namespace":
        settings["hostUsers"] = False
    return settings


def security_context(privileges: Privileges, seccomp_file: str = SECCOMP_FILE) -> dict[str, Any]:
    """Return the security context of a container."""
    filters = {
        # Some container runtimes refuse vmsplice, which CRIU needs, even to root with all capabilities.
        "seccompProfile": {"type": "Localhost", "localhostProfile": seccomp_file},
        # The runtimes' default profile refuses mounts.
        "appArmorProfile": {"type": "Unconfined"},
    }
    if privileges == "capabilities":
        return {
            "runAsUser": 0,
            "allowPrivilegeEscalation": True,  # Kubernetes requires it with SYS_ADMIN
            "capabilities": {"add": list(_CAPABILITIES)},
            **filters,
        }
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "procMount": "Unmasked",
        **filters,
    }


def pre_stop(suspend_seconds: float, *, disk_survives: bool) -> dict[str, Any]:
    """Return the preStop hook: it suspends the kernels while their server still runs, so that open pages show it.

    `disk_survives`: the snapshots are on a volume, so uploads to a remote need not be awaited.
    """
    command = ["jupyter", "gpuckpt", "notice", f"--within={math.ceil(suspend_seconds)}s"]
    return {"exec": {"command": [*command, *(["--disk-survives"] if disk_survives else [])]}}


def pod(
    *,
    name: str = "jupyter-gpuckpt",
    image: str = IMAGE,
    privileges: Privileges = "user-namespace",
    suspend_seconds: float = SUSPEND_SECONDS,
    gpus: int = 0,
    claim: str = "",
) -> dict[str, Any]:
    """Return a pod with JupyterLab, without a hub. `claim`: the volume for the home directory; without one it needs a remote."""
    context = {"runAsUser": _USER} | security_context(privileges)
    container: dict[str, Any] = {
        "name": "notebook",
        "image": image,
        "args": ["jupyter", "lab", "--ip=0.0.0.0", f"--port={_PORT}", "--no-browser"],
        "ports": [{"containerPort": _PORT}],
        "lifecycle": {"preStop": pre_stop(suspend_seconds, disk_survives=bool(claim))},
        "securityContext": context,
    }
    if privileges == "capabilities":
        container["args"].append("--allow-root")
        container["env"] = [{"name": "HOME", "value": HOME}]
    if gpus:
        container["resources"] = {"limits": _gpus(gpus)}
    spec = pod_settings(privileges, suspend_seconds) | {"containers": [container]}
    if claim:
        container["volumeMounts"] = [{"name": "home", "mountPath": HOME}]
        spec["volumes"] = [{"name": "home", "persistentVolumeClaim": {"claimName": claim}}]
        spec["securityContext"] = {"fsGroup": _USER}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def hub_values(
    *,
    image: str = IMAGE,
    privileges: Privileges = "user-namespace",
    suspend_seconds: float = SUSPEND_SECONDS,
    gpus: int = 0,
    capacity: str = "20Gi",
) -> dict[str, Any]:
    """Return values for the chart zero-to-jupyterhub. The spawner chooses what depends on them, such as grace periods."""
    name, _, tag = (
        image.rpartition(":") if ":" in image.rpartition("/")[2] else (image, "", "latest")
    )
    singleuser: dict[str, Any] = {
        "image": {"name": name, "tag": tag},
        "cmd": "jupyterhub-singleuser",
        "uid": _USER,
        "fsGid": _USER,
        # The hub waits as long for the start of a pod, and for its end.
        "startTimeout": max(300, stop_seconds(suspend_seconds) + 60),
        "storage": {"type": "dynamic", "capacity": capacity, "homeMountPath": HOME},
    }
    if privileges == "capabilities":
        # No other user has the added capabilities.
        singleuser["uid"] = 0
        singleuser["extraEnv"] = {"HOME": HOME}
        singleuser["cmd"] = ["jupyterhub-singleuser", "--allow-root"]
    if gpus:
        singleuser["extraResource"] = {"limits": _gpus(gpus)}
    config = {
        "JupyterHub": {"spawner_class": "gpuckpt-kubernetes"},
        "GpuCkptSpawnerMixin": {"suspend_timeout": suspend_seconds},
        "GpuCkptKubeSpawner": {"privileges": privileges},
    }
    return {"hub": {"config": config}, "singleuser": singleuser}


def node_filter(profile: str, image: str = NODE_IMAGE) -> list[dict[str, Any]]:
    """Return objects that write the seccomp filter to the kubelet's folder on every node.

    `profile`: the filter; `image`: one with sh, cp and mv, which runs as root on every node.
    """
    name = "gpuckpt-seccomp"
    text = json.dumps(json.loads(profile), separators=(",", ":"))
    source, target = "/filter", "/kubelet"
    # Renamed at the end, so that the kubelet never reads a part of it.
    copy = f"cp {source}/{SECCOMP_FILE} {target}/.{SECCOMP_FILE} && mv {target}/.{SECCOMP_FILE} {target}/{SECCOMP_FILE}"
    containers = {
        "initContainers": [
            {
                "name": "copy",
                "image": image,
                "command": ["sh", "-c", copy],
                "volumeMounts": [
                    {"name": "filter", "mountPath": source},
                    {"name": "kubelet", "mountPath": target},
                ],
            }
        ],
        "containers": [
            {
                "name": "wait",
                "image": image,
                "command": ["sh", "-c", "trap exit TERM; sleep infinity & wait"],
            }
        ],
        "volumes": [
            {"name": "filter", "configMap": {"name": name}},
            {
                "name": "kubelet",
                "hostPath": {"path": SECCOMP_FOLDER, "type": "DirectoryOrCreate"},
            },
        ],
        "tolerations": [{"operator": "Exists"}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name},
            "data": {SECCOMP_FILE: text},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": name},
            "spec": {
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    # The filter's digest: another filter makes new pods, which write it.
                    "metadata": {
                        "labels": {"app": name},
                        "annotations": {"jupyter-gpuckpt/filter": _digest(text)},
                    },
                    "spec": containers,
                },
            },
        },
    ]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _gpus(count: int) -> dict[str, str]:
    return {"nvidia.com/gpu": str(count)}
