"""Containers as people start them, and what becomes of kernels in each. The one source of tests/containers and docs/containers.md."""

from __future__ import annotations

from dataclasses import dataclass

from jupyter_gpuckpt.host import doctor_remedies

#: docker's default filter, written by `podman.docker_default`.
DOCKER_DEFAULT = "--security-opt seccomp=docker-default.json"
OURS = f"--security-opt seccomp={doctor_remedies.SECCOMP_FILE}"
UNMASKED = "--security-opt unmask=ALL"
ADMIN = "--cap-add SYS_ADMIN --cap-add SYS_PTRACE --cap-add SYS_TIME --cap-add NET_ADMIN"
#: As podman's --userns=auto and Kubernetes' hostUsers: false: no id in it is one of the machine's first user namespace.
OWN_USERS = "--uidmap 0:200000:65536 --gidmap 0:200000:65536"
CLOSED = (
    "--cap-drop ALL --security-opt no-new-privileges --read-only --read-only-tmpfs=false"
    " --tmpfs /tmp:notmpcopyup --shm-size 1m --pids-limit 200 --memory 1g"
)

FILTER = "The container's seccomp filter refuses system calls."
MASKED = "The container hides parts of its /proc, so Linux refuses to mount another one in it."


@dataclass(frozen=True)
class Row:
    """A way to start a container, by podman or docker."""

    name: str
    title: str
    options: str
    #: What the reason must say; nothing where kernels are saved.
    refused: tuple[str, ...] = ()
    #: What the hint must contain.
    mend: str = ""
    #: Part of `make test`.
    quick: bool = False
    engine: str = "podman"

    @property
    def own_users(self) -> bool:
        """Whether the container's root is nobody of the machine's."""
        return OWN_USERS in self.options


def printed(line: str) -> str:
    """Return the options of a line that the doctor prints, like `docker run OPTION... ...`."""
    return line.partition(" run ")[2].removesuffix(" ...")


PODMAN, DOCKER = doctor_remedies.CONTAINER["podman"], doctor_remedies.CONTAINER["docker"]

ROWS = [
    Row("docker", "docker, nothing added", "", ("user namespace", FILTER), DOCKER, engine="docker"),
    Row(
        "docker-printed",
        "docker, the line that the doctor prints",
        printed(DOCKER),
        engine="docker",
    ),
    Row(
        "docker-user",
        "the same, an ordinary user without any capability",
        f"--user 1001 --cap-drop ALL {printed(DOCKER)}",
        engine="docker",
    ),
    Row(
        "docker-masked",
        "docker, our filter, but parts of /proc are hidden",
        OURS,
        ("mount /proc", MASKED),
        DOCKER,
        engine="docker",
    ),
    Row("docker-admin", "docker, four capabilities, nothing else", ADMIN, engine="docker"),
    Row(
        "docker-defaults",
        "podman with docker's default filter, root",
        DOCKER_DEFAULT,
        ("user namespace", FILTER),
        PODMAN,
        quick=True,
    ),
    Row(
        "docker-defaults-user",
        "the same, an ordinary user",
        f"--user 1001 {DOCKER_DEFAULT}",
        ("user namespace", FILTER),
        PODMAN,
    ),
    Row("podman-defaults", "podman, nothing added", "", ("mount /proc", MASKED), PODMAN),
    Row(
        "criu-capabilities",
        "docker's default filter and the three capabilities with which CRIU itself can do",
        f"{DOCKER_DEFAULT} --cap-add CHECKPOINT_RESTORE --cap-add SYS_PTRACE --cap-add NET_ADMIN",
        ("user namespace", FILTER),
        PODMAN,
    ),
    Row(
        "printed-docker",
        "the line that the doctor prints in docker, by podman",
        printed(DOCKER),
        quick=True,
    ),
    Row("printed-podman", "podman, the line that the doctor prints", printed(PODMAN)),
    Row(
        "ordinary-user",
        "the same, an ordinary user without any capability",
        f"--user 1001 --cap-drop ALL {printed(PODMAN)}",
    ),
    Row(
        "closed",
        "the same, and also: read-only root, no new privileges, 1 MB of /dev/shm, limits of processes and memory",
        f"--user 1001 {CLOSED} {printed(PODMAN)}",
        quick=True,
    ),
    Row(
        "unconfined",
        "an ordinary user, no filter at all, all of /proc",
        f"--user 1001 --security-opt seccomp=unconfined {UNMASKED}",
    ),
    Row(
        "no-profile",
        "all of /proc, but podman's default filter",
        UNMASKED,
        ("kcmp (EPERM)", FILTER),
        PODMAN,
    ),
    Row(
        "masked",
        "our filter, but parts of /proc are hidden",
        OURS,
        ("mount /proc", MASKED),
        PODMAN,
    ),
    Row(
        "bare-root",
        "the printed line, root without any capability",
        f"--cap-drop ALL {printed(PODMAN)}",
        ("uid_map", "CAP_SETFCAP"),
        doctor_remedies.CONTAINER_SETFCAP["podman"],
    ),
    Row(
        "bare-root-mended",
        "the line that the doctor prints there",
        f"--cap-drop ALL {printed(doctor_remedies.CONTAINER_SETFCAP['podman'])}",
    ),
    Row(
        "admin-docker",
        "docker's default filter, hidden parts of /proc, and the four capabilities of an administrator",
        f"{ADMIN} {DOCKER_DEFAULT}",
    ),
    Row("admin-ours", "the same with our filter", f"{ADMIN} {OURS}"),
    Row("privileged", "a privileged container", "--privileged"),
    Row(
        "own-users",
        "users of its own (podman --userns=auto, Kubernetes hostUsers: false), the printed line, root",
        f"{OWN_USERS} {printed(PODMAN)}",
    ),
    Row(
        "own-users-user",
        "the same, an ordinary user",
        f"{OWN_USERS} --user 1001 {printed(PODMAN)}",
    ),
    Row(
        "own-users-admin",
        "users of its own, the four capabilities, no filter, but parts of /proc are hidden",
        f"{OWN_USERS} {ADMIN} --security-opt seccomp=unconfined",
        ("mount /proc", MASKED),
        PODMAN,
    ),
    Row(
        "rootless-defaults",
        "podman of an ordinary user, nothing added",
        "",
        ("mount /proc", MASKED),
        PODMAN,
        engine="rootless",
    ),
    Row(
        "rootless-printed",
        "podman of an ordinary user, the line that the doctor prints",
        printed(PODMAN),
        engine="rootless",
    ),
]
