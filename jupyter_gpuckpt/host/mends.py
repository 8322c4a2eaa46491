"""What keeps the engine from working where a trial failed, and the one line that changes it here.

The lines are constants, because tests and the documentation use the same ones (tests/containers, docs/containers.md).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from . import privileges

#: `jupyter gpuckpt doctor --seccomp` writes this file: what a container's default filter refuses of what CRIU does.
SECCOMP_FILE = "gpuckpt-seccomp.json"
_SECCOMP = f"--security-opt seccomp={SECCOMP_FILE}"

#: By the kind of container. No capability is among them: kernels get a user namespace each. Its /proc can be mounted only
#: where nothing is laid over parts of the container's own.
CONTAINER = {
    "docker": f"docker run {_SECCOMP} --security-opt systempaths=unconfined --security-opt apparmor=unconfined ...",
    "podman": f"podman run {_SECCOMP} --security-opt unmask=ALL ...",
    "kubernetes": (
        "securityContext: {procMount: Unmasked, appArmorProfile: {type: Unconfined},"
        f" seccompProfile: {{type: Localhost, localhostProfile: {SECCOMP_FILE}}}}}"
    ),
    "lxc": "lxc config set CONTAINER security.nesting true",
}
#: A service that systemd starts has all rights, whatever the caller was left with.
UNRESTRICTED = "sudo systemd-run --pty --same-dir --uid=$(id -u) jupyter lab"
APPARMOR = (
    "jupyter gpuckpt doctor --apparmor | sudo tee /etc/apparmor.d/gpuckpt-init"
    " && sudo apparmor_parser -r /etc/apparmor.d/gpuckpt-init"
)
REBOOT = "sudo reboot"

#: Switches of Linux that keep ordinary users from user namespaces: the file, the value, why and what changes it.
_SWITCHES = (
    (
        "user/max_user_namespaces",
        "0",
        "user.max_user_namespaces is 0: nobody can make user namespaces.",
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


class Mend(NamedTuple):
    """Why something was refused, as a sentence, and the one command that changes it; empty where none is known."""

    why: str
    fix: str


def find(*, sysctl: Path = Path("/proc/sys")) -> Mend:
    """Return what is the most likely cause on this machine of a system call that was refused."""
    if privileges.ptrace_scope() == privileges.NO_PTRACE:
        return Mend("kernel.yama.ptrace_scope is 3, which only a reboot can change.", REBOOT)
    kind = privileges.in_container()
    if kind and (causes := _container_causes()):
        return Mend(f"The container's settings do it: {', '.join(causes)}.", CONTAINER[kind])
    if not (os.geteuid() == 0 and "SYS_ADMIN" in privileges.effective()):
        for name, value, why, fix in _SWITCHES:
            if _read(sysctl / name) == value:
                return Mend(why, fix)
    if privileges.seccomp_filters():
        return Mend("A seccomp filter restricts this process.", UNRESTRICTED)
    if os.geteuid() == 0 and (missing := privileges.NEEDED - privileges.effective()):
        names = ", ".join(f"CAP_{name}" for name in sorted(missing))
        return Mend(f"This root was started without {names}.", UNRESTRICTED)
    return Mend("", "")


def _container_causes() -> list[str]:
    causes = []
    if privileges.seccomp_filters():
        causes.append("its seccomp filter refuses system calls")
    if privileges.masked_proc():
        causes.append("parts of its /proc are hidden")
    if _read(Path("/proc/self/attr/current")).endswith("(enforce)"):
        causes.append("its AppArmor profile refuses mounts")
    return causes


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
