"""The secrets in the description of a kernel's manager: removed before it is stored, and restored for a later server.

Secrets are the key with which its messages are signed, and the environment that its kernelspec sets. They are in the kernel's memory
in any case, so they are stored with it: on its scratch, and from there in the part of a snapshot that holds memory. No record of the
daemon and no manifest contains them (docs/secrets.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def parted(described: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a manager's description without its secrets, and the secrets."""
    public, secrets = dict(described), dict[str, Any]()
    connection, kernelspec = public.get("connection_info"), public.get("kernelspec")
    if isinstance(connection, dict) and connection.get("key"):
        public["connection_info"] = {n: v for n, v in connection.items() if n != "key"}
        secrets["key"] = connection["key"]
    if isinstance(kernelspec, dict) and kernelspec.get("env"):
        public["kernelspec"] = {**kernelspec, "env": {}}
        secrets["kernelspec_env"] = kernelspec["env"]
    return public, secrets


def joined(public: Mapping[str, Any], secrets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole description again."""
    described = dict(public)
    for secret, (part, name) in _PLACES.items():
        if secret in secrets and isinstance(described.get(part), dict):
            described[part] = {**described[part], name: secrets[secret]}
    return described


_PLACES = {"key": ("connection_info", "key"), "kernelspec_env": ("kernelspec", "env")}
