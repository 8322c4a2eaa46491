"""The rights of this process: capabilities, namespaces, seccomp, ptrace."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..wire import decoding
from . import commands, processes

#: Names of the capabilities by their number, without CAP_ (man page: capabilities(7)).
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"),
    *("SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW"),
    *("IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT"),
    *("SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD"),
    *("LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG"),
    *("WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE"),
)

#: The capabilities that CRIU and the kernel's namespaces need. SYS_ADMIN includes CHECKPOINT_RESTORE.
NEEDED = frozenset(
    {"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "SETPCAP", "SYS_CHROOT"}
    | {"NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE", "SYS_TIME"}
)

#: The value of `ptrace_scope` that forbids tracing to all users until the next boot.
NO_PTRACE = 3

#: PROC_PID_INIT_INO (include/linux/proc_ns.h).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"

_ALL_IDS = ["0", "0", "4294967295"]

ATTEMPTS = Path(__file__).with_name("attempts.py")


def effective() -> frozenset[str]:
    """Return the effective capabilities, by name without CAP_."""
    bits = int(processes.status(os.getpid()).get("CapEff", "0"), 16)
    return frozenset(name for number, name in enumerate(CAPABILITIES) if bits >> number & 1)


def suffice() -> bool:
    """Return whether this process has all rights that are needed for kernels that share its user namespace.

    The result is False in a user namespace: CRIU needs capabilities in the machine's initial one.
    """
    return effective() >= NEEDED and in_first_user_namespace()


def in_first_user_namespace() -> bool:
    """Return whether all of the machine's ids are mapped to themselves here (man user_namespaces)."""
    try:
        return Path("/proc/self/uid_map").read_text().split() == _ALL_IDS
    except OSError:  # a Linux without user namespaces
        return True


def seccomp_filters() -> int:
    """Return the number of seccomp filters of this process."""
    status = processes.status(os.getpid())
    return int(status.get("Seccomp_filters", "1" if status.get("Seccomp", "0") != "0" else "0"))


def masked_proc() -> bool:
    """Return whether something is mounted over parts of /proc, so that no /proc can be mounted in a user namespace.

    The new /proc would show the parts that are hidden here, so Linux refuses it (mount_too_revealing in fs/namespace.c).
    """
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return any(line.split()[1].startswith("/proc/") for line in mounts)


def sees_whole_machine() -> bool:
    """Return whether this process is in the machine's initial PID namespace; processes of containers are not."""
    return os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE


def in_container() -> str:
    """Return the kind of container around this process (docker, podman, kubernetes, lxc), or an empty string.

    This is a guess: a virtual machine started from a container image may look like one.
    """
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if Path("/run/.containerenv").exists():
        return "podman"
    if Path("/.dockerenv").exists():
        return "docker"
    try:
        groups = Path("/proc/1/cgroup").read_text()
    except OSError:
        groups = ""
    kinds = {"kubepods": "kubernetes", "docker": "docker", "libpod": "podman", "lxc": "lxc"}
    return next((kind for sign, kind in kinds.items() if sign in groups), "")


def ptrace_scope() -> int:
    """Return Yama's rule of who may trace whom (0 to 3, man page: ptrace(2)); 0 without Yama."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def attempts(pid: int) -> dict[str, str]:
    """Try a save's system calls on a process; return by name the error that occurred, or an empty string.

    The result is empty when the program that tries them cannot run. The names are in `attempts.py`.
    """
    try:
        done = commands.run([sys.executable, "-I", "-S", ATTEMPTS, str(pid)], timeout=30)
    except commands.CommandFailed:
        return {}
    return decoding.from_json(done.stdout, dict[str, str])
