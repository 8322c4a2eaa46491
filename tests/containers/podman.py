"""Real containers, by podman, on an overlay of this machine's own files: nothing is downloaded, and the checkout is inside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.containers import machine_files
from tests.containers.inside import Result

#: podman's own profile, in containers-common.
DEFAULT = Path("/usr/share/containers/seccomp.json")
#: What docker's default profile allows only with CAP_SYS_ADMIN, and podman's to everybody.
DOCKER_REFUSES = frozenset(
    {"clone3", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount"}
    | {"open_tree", "setns", "umount", "umount2", "unshare"}
)
#: CLONE_NEW* but CLONE_NEWTIME, which is no flag of clone.
_NAMESPACES = 0x7E020000


class Podman:
    """Runs containers; everything that it keeps lies below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        lines = [
            "[containers]",
            f"default_ulimits = {json.dumps(machine_files.limits())}",
            "[engine]",
            'cgroup_manager = "cgroupfs"',
            'events_logger = "file"',
            *(['runtime = "runc"'] if shutil.which("runc") else []),
        ]
        (folder / "containers.conf").write_text("\n".join(lines))
        machine_files.write_profile(folder)
        if DEFAULT.exists():
            (folder / "docker-default.json").write_text(json.dumps(docker_default()))

    def run(self, options: list[str], *, foreign_root: bool = False) -> Result:
        """Run `inside` in a container with these options. File names in them are relative to the folder.

        `foreign_root`: the container's root is another user, who cannot make mount points in /.
        """
        run = self._run_on_copy if foreign_root else self._run
        done = run(options, machine_files.INSIDE)
        return machine_files.result(done.args, done.returncode, done.stdout, done.stderr)

    def obstacle(self) -> str:
        """Return why no container can be run here; an empty string if one can."""
        if not shutil.which("podman"):
            return "podman is not installed"
        if not DEFAULT.exists():
            return f"podman's default filter is not at {DEFAULT}"
        done = self._run([], ["true"])
        return "" if done.returncode == 0 else f"podman runs no container: {done.stderr[-500:]}"

    def _run(
        self,
        options: list[str],
        command: list[str],
        rootfs: str = "/:O",
        prefix: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        return run_podman(
            [*machine_files.readable(self._folder), *options, *machine_files.kept(options)],
            [rootfs, *command],
            prefix=prefix,
            store=self._folder,
            folder=self._folder,
            env=os.environ | {"CONTAINERS_CONF": str(self._folder / "containers.conf")},
        )

    def _run_on_copy(
        self, options: list[str], command: list[str]
    ) -> subprocess.CompletedProcess[str]:
        """Run on an overlay of our own in which all mount points are there; its mount is gone with the command."""
        upper, work, merged = (self._folder / name for name in ("upper", "work", "merged"))
        (upper / "run").mkdir(parents=True, exist_ok=True)
        (upper / "run/.containerenv").touch()
        work.mkdir(exist_ok=True)
        merged.mkdir(exist_ok=True)
        layers = f"lowerdir=/,upperdir={upper},workdir={work}"
        mount = f'mount -t overlay -o {layers} overlay {merged} && exec "$@"'
        prefix = ["unshare", "--mount", "--propagation=slave", "sh", "-c", mount, "sh"]
        return self._run(options, command, str(merged), prefix)


def run_podman(
    options: Sequence[str],
    rootfs_and_command: Sequence[str],
    *,
    prefix: Sequence[str],
    store: Path,
    folder: Path,
    env: Mapping[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run a command in a container, by podman behind `prefix`. What podman keeps lies below `store`."""
    kept = [f"--{name}={store / name}" for name in ("root", "runroot", "tmpdir")]
    return subprocess.run(
        [
            *prefix,
            *("podman", *kept, "--storage-driver=vfs", "run", "--rm", "--network=none"),
            *machine_files.environment(),
            *options,
            *("--rootfs", *rootfs_and_command),
        ],
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=machine_files.SECONDS,
        check=False,
    )


def docker_default() -> dict[str, object]:
    """Return podman's default profile with what docker's refuses beyond it."""
    profile: dict[str, object] = json.loads(DEFAULT.read_text())
    rules = profile["syscalls"]
    assert isinstance(rules, list)
    for rule in rules:
        if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("includes"):
            rule["names"] = [
                name for name in rule["names"] if name not in DOCKER_REFUSES | {"clone"}
            ]
    new = {"index": 0, "value": _NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    rules += [
        {"names": ["vmsplice"], "action": "SCMP_ACT_ALLOW"},
        {
            "names": sorted(DOCKER_REFUSES | {"clone"}),
            "action": "SCMP_ACT_ALLOW",
            "includes": {"caps": ["CAP_SYS_ADMIN"]},
        },
        {  # libc then falls back to clone
            "names": ["clone3"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": 38,
            "excludes": {"caps": ["CAP_SYS_ADMIN"]},
        },
        {
            "names": ["clone"],
            "action": "SCMP_ACT_ALLOW",
            "args": [new],
            "excludes": {"caps": ["CAP_SYS_ADMIN"]},
        },
    ]
    profile["syscalls"] = [rule for rule in rules if rule["names"]]
    profile["defaultErrnoRet"], profile["defaultErrno"] = 1, "EPERM"
    return profile
