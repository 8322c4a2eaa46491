"""Which snapshots outlive their pod: those in a data directory on a volume that is not removed with the pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from ..wire import daemon_settings

#: The variables that say where snapshots are (daemon_settings.py).
_STORE = "JUPYTER_GPUCKPT_STORE_DIR"
_NAMES = ("HOME", "XDG_DATA_HOME", "JUPYTER_GPUCKPT_DATA_DIR", _STORE)
#: The volumes that outlive a pod, in lower case and without underscores. Not among them is csi: a volume that a pod names itself ends with
#: the pod, by the definition of Kubernetes; a driver's lasting volumes are claims.
_LASTING = frozenset(
    {
        "awselasticblockstore",
        "azuredisk",
        "azurefile",
        "cephfs",
        "cinder",
        "fc",
        "gcepersistentdisk",
        "glusterfs",
        "hostpath",
        "iscsi",
        "nfs",
        "persistentvolumeclaim",
        "portworxvolume",
        "rbd",
        "vspherevolume",
    }
)


def keep_snapshots(
    volumes: Iterable[Mapping[str, Any]],
    mounts: Iterable[Mapping[str, Any]],
    environ: Mapping[str, object],
    home: str,
) -> bool:
    """Return whether a container's snapshots are on volumes that outlive its pod.

    `volumes`, `mounts`: those of the pod and of the container, with names as in YAML or as in the Python client; `environ`: the container's
    variables; `home`: its home directory if the variables have none.
    """
    chosen = {name: environ[name] for name in _NAMES if environ.get(name)}
    known = {name: value for name, value in chosen.items() if isinstance(value, str)}
    if len(known) < len(chosen):
        return False  # from a secret or by a function: it may be anywhere
    home = known.get("HOME", home)
    data = daemon_settings.from_environment(
        {"XDG_DATA_HOME": f"{home}/.local/share"} | known
    ).data_dir
    lasting = {volume["name"] for volume in volumes if _plain(volume) & _LASTING}
    by_path = {
        PurePosixPath(mount.get("mountPath") or mount["mount_path"]): mount["name"]
        for mount in mounts
    }

    def lasts(directory: str) -> bool:
        path = PurePosixPath(directory)
        above = [by_path[one] for one in (path, *path.parents) if one in by_path]
        return bool(above) and above[0] in lasting

    return lasts(data) and lasts(known.get(_STORE, data))


def _plain(volume: Mapping[str, Any]) -> set[str]:
    """Return the names of what a volume has, in lower case and without underscores."""
    return {name.replace("_", "").lower() for name, value in volume.items() if value is not None}
