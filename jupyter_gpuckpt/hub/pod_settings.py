"""The settings of a pod in Kubernetes with which kernels can be saved and no suspend is cut short, as plain values.

deploy/kubernetes has files with the same settings for pods without a hub.
"""

from __future__ import annotations

import math
from typing import Any, Literal

#: How a pod gets what kernels need: a user namespace of its own, or capabilities on the node.
Privileges = Literal["user-namespace", "capabilities"]
PRIVILEGES: tuple[Privileges, ...] = ("user-namespace", "capabilities")

#: The filter's file in the kubelet's folder of seccomp profiles, as deploy/kubernetes/node-filter.yaml writes it.
SECCOMP_FILE = "gpuckpt-seccomp.json"
#: Where the snapshots of the user of the image that deploy/build-image builds are.
HOME = "/home/jovyan"
#: The capabilities with which root can save kernels, even if parts of /proc are hidden.
_CAPABILITIES = ["SYS_ADMIN", "SYS_PTRACE", "SYS_TIME", "NET_ADMIN"]


def security_context(privileges: Privileges) -> dict[str, Any]:
    """Return the security context of a container."""
    filters = {
        # Some container runtimes refuse vmsplice, which CRIU needs, even to root with all capabilities.
        "seccompProfile": {"type": "Localhost", "localhostProfile": SECCOMP_FILE},
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
