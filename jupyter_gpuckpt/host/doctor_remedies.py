"""The causes of a failed trial of the engine on this machine, and the one command that fixes each.

The lines are constants, because tests and the documentation use the same ones (tests/containers, docs/containers.md).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NamedTuple

from . import privileges

#: The file that `jupyter gpuckpt doctor --seccomp` writes: a filter for containers that permits the system calls of CRIU.
SECCOMP_FILE = "gpuckpt-seccomp.json"
_SECCOMP = f"--security-opt seccomp={SECCOMP_FILE}"

#: Options by the kind of container. No capability is among them, because each kernel gets a user namespace. Its /proc can be
#: mounted only if nothing is mounted over parts of the container's own /proc.
CONTAINER = {
    "docker": f"docker run {_SECCOMP} --security-opt systempaths=unconfined --security-opt apparmor=unconfined ...",
    "podman": f"podman run {_SECCOMP} --security-opt unmask=ALL ...",
    "kubernetes": (
        "securityContext: {procMount: Unmasked, appArmorProfile: {type: Unconfined},"
        f" seccompProfile: {{type: Localhost, localhostProfile: {SECCOMP_FILE}}}}}"
    ),
    "lxc": "lxc config set CONTAINER security.nesting true",
}
#: The same for root without CAP_SETFCAP, which may not map its own id into a user namespace.
CONTAINER_SETFCAP = {
    "docker": CONTAINER["docker"].replace("...", "--cap-add SETFCAP ..."),
    "podman": CONTAINER["podman"].replace("...", "--cap-add SETFCAP ..."),
    "kubernetes": CONTAINER["kubernetes"].replace("{", "{capabilities: {add: [SETFCAP]}, ", 1),
    "lxc": CONTAINER["lxc"],
}
#: A command by which systemd starts a service with all rights, whatever rights the caller lacks.
UNRESTRICTED = "sudo systemd-run --pty --same-dir --uid=$(id -u) jupyter lab"
APPARMOR = (
    "jupyter gpuckpt doctor --apparmor | sudo tee /etc/apparmor.d/gpuckpt-init"
    " && sudo apparmor_parser -r /etc/apparmor.d/gpuckpt-init"
)
REBOOT = "sudo reboot"

#: sysctls that forbid user namespaces to ordinary users: the file, the forbidding value, the cause and the fix.
_SWITCHES = (
    (
        "user/max_user_namespaces",
        "0",
        "user.max_user_namespaces is 0: no user namespace can be created.",
        "sudo sysctl -w user.max_user_namespaces=65536",
    ),
    (
        "kernel/unprivileged_userns_clone",
        "0",
        "kernel.unprivileged_userns_clone is 0: only root can make user namespaces.",
        "sudo sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor keeps ordinary users from user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1).",
        APPARMOR,
    ),
)


#: The sysctl that limits the number of namespaces of each kind, by the steps of gpuckpt-init that make them.
_NAMESPACE_LIMITS = {
    "user namespace": "max_user_namespaces",
    "PID namespace": "max_pid_namespaces",
    "mount namespace": "max_mnt_namespaces",
    "time namespace": "max_time_namespaces",
}


class Remedy(NamedTuple):
    """A sentence with the cause of a refusal, and the one command that fixes it; empty if none is known."""

    why: str
    fix: str


def find(refused: str = "", *, sysctl: Path = Path("/proc/sys")) -> Remedy:
    """Return the most likely cause of a refusal on this machine. `refused`: the step of gpuckpt-init that was refused."""
    if privileges.ptrace_scope() == privileges.NO_PTRACE:
        return Remedy("kernel.yama.ptrace_scope is 3, which only a reboot can change.", REBOOT)
    if limit := namespace_limit(refused, sysctl=sysctl):
        return limit
    kind = privileges.in_container()
    return (
        (_of_container(kind, refused) if kind else None)
        or _of_switches(sysctl, kind, refused)
        or _of_restrictions(kind)
        or Remedy("", "")
    )


def namespace_limit(refused: str, *, sysctl: Path = Path("/proc/sys")) -> Remedy | None:
    """Return the limit of namespaces that refused a step of gpuckpt-init; None if another cause did.

    Linux reports it as a lack of space on a device, although no disk is involved.
    """
    if os.strerror(errno.ENOSPC) not in refused:
        return None
    for step, name in _NAMESPACE_LIMITS.items():
        if step in refused:
            limit = _read(sysctl / "user" / name)
            why = f"The limit of {step}s is reached: user.{name} is {limit or 'unknown'}."
            return Remedy(why, f"sudo sysctl -w user.{name}=65536")
    return None


def switches() -> list[str]:
    """Return the values of the sysctls that restrict user namespaces, and the AppArmor profile."""
    files = [Path("/proc/sys", name) for name, *_ in _SWITCHES]
    return [_read(file) for file in (*files, Path("/proc/self/attr/current"))]


def _of_container(kind: str, refused: str) -> Remedy | None:
    if "uid_map" in refused and os.geteuid() == 0 and "SETFCAP" not in privileges.effective():
        why = "Root without CAP_SETFCAP may not map its own id; any other user may."
        return Remedy(why, CONTAINER_SETFCAP[kind])
    if "mount /proc" in refused and privileges.masked_proc():
        why = "The container hides parts of its /proc, so Linux refuses to mount another one in it."
        return Remedy(why, CONTAINER[kind])
    if "mount" in refused and _read(Path("/proc/self/attr/current")).endswith("(enforce)"):
        return Remedy("The container's AppArmor profile refuses mounts.", CONTAINER[kind])
    return None


def _of_switches(sysctl: Path, kind: str, refused: str) -> Remedy | None:
    if os.geteuid() == 0 and "SYS_ADMIN" in privileges.effective():
        return None
    for name, value, why, fix in _SWITCHES:
        # Newer AppArmor refuses operations inside a namespace, not the namespace itself; in a container a seccomp filter is likelier.
        if kind and "apparmor" in name and "user namespace" in refused:
            continue
        if _read(sysctl / name) == value:
            return Remedy(why, fix)
    return None


def _of_restrictions(kind: str) -> Remedy | None:
    if privileges.seccomp_filters():
        if kind:
            return Remedy("The container's seccomp filter refuses system calls.", CONTAINER[kind])
        return Remedy("A seccomp filter restricts this process.", UNRESTRICTED)
    if os.geteuid() == 0 and (missing := privileges.NEEDED - privileges.effective()):
        names = ", ".join(f"CAP_{name}" for name in sorted(missing))
        return Remedy(f"This root was started without {names}.", UNRESTRICTED)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
