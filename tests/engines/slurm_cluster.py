"""A real Slurm with two nodes on this machine, each with processes, a host name and a runtime directory of its own.

Jobs run as root, or as another user of this machine, without accounting. For root's jobs each node also has a boot id of its own.
Process tracking is by control groups, as on clusters: whatever a job leaves is killed at its end.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

from jupyter_gpuckpt.host import criu_program
from tests.as_user import ROOT, open_folders
from tests.conftest import wait_for
from tests.ports import free_port

_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol", "unshare")
#: Where Slurm makes the control groups of jobs.
_FREEZER = Path("/sys/fs/cgroup/freezer")
#: What a preempted job has before it is ended, and what a canceled job has before it is killed, in seconds.
GRACE_SECONDS, KILL_SECONDS = 60, 60

#: A job waits as long as credentials are valid before it is started again; 5 s is the shortest.
_CONFIG = """
ClusterName=gpuckpt
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait={kill_seconds}
MessageTimeout=60
ReturnToService=2
SlurmdTimeout=15
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_seconds} MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""
_CGROUPS = """
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
"""
#: The first process of a node, which also waits for orphans: FOLDER NAME USER PYTHON.
_NODE = """
hostname "$2"
# Linux lets no ordinary user mount a /proc where a part of this one is hidden.
[ "$3" != 0 ] || mount --bind "$1/boot-$2" /proc/sys/kernel/random/boot_id || exit
mount -t tmpfs -o "mode=700,uid=$3" node "$1/runtime" && "$4" -m tests.engines.slurm_cluster || exit
slurmd -D -N "$2" -f "$1/slurm.conf" & wait $!
"""
_ON_ITS_OWN = ("--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc")


class SlurmCluster:
    """A Slurm below `folder`, which needs a short path; `env` is the environment of jobs, which are those of `user`."""

    def __init__(self, folder: Path, env: dict[str, str], user: str = "root") -> None:
        self.user = pwd.getpwnam(user)
        self.folder = folder / "slurm"
        self.log_path = self.folder / "slurmctld.log"
        self.env = {**env, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.env["JUPYTER_GPUCKPT_RUNTIME_DIR"] = str(self.folder / "runtime")
        # Control groups have the names of nodes, so other clusters on this machine need other names.
        self.nodes = [f"n{number}-{os.getpid()}" for number in range(2)]
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    @staticmethod
    def obstacle() -> str:
        """Return why it cannot be used here; an empty string if it can."""
        for program in _PROGRAMS:
            if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
                return f"{program} is not installed"
        if os.geteuid():
            return "the nodes of these tests take root"
        return "" if _FREEZER.is_dir() else "there is no control group for freezing (version 1)"

    def start(self) -> SlurmCluster:
        """Start the controller and the nodes, and wait until they are idle."""
        for name in ("state", "runtime", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        host = socket.gethostname()
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2"
            for node in self.nodes
        )
        (self.folder / "slurm.conf").write_text(
            _CONFIG.format(
                folder=self.folder,
                host=host,
                port=free_port(),
                nodes=nodes,
                kill_seconds=KILL_SECONDS,
                grace_seconds=GRACE_SECONDS,
            )
        )
        (self.folder / "cgroup.conf").write_text(_CGROUPS)
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
        files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        self._begin("munged", ["munged", "--foreground", "--force", *options])
        wait_for((self.folder / "munge.socket").exists, said=self.log)
        self._begin("slurmctld", ["slurmctld", "-D", "-f", self.env["SLURM_CONF"]])
        for node in self.nodes:
            self.start_node(node)
        wait_for(lambda: self.states() == ["idle"] * len(self.nodes), said=self.log)
        return self

    def start_node(self, node: str) -> None:
        """Start a node, as after a boot."""
        (self.folder / f"boot-{node}").write_text(f"{uuid.uuid4()}\n")
        words = [str(self.folder), node, str(self.user.pw_uid), sys.executable]
        command = ["unshare", *_ON_ITS_OWN, "sh", "-c", _NODE, "sh", *words]
        self._begin(node, command)

    def kill_node(self, node: str) -> None:
        """Kill all processes of a node, as by a power failure."""
        self._started[node].kill()
        self._started.pop(node).wait()

    def states(self) -> list[str]:
        """Return the states of the nodes."""
        return self("sinfo", "--Node", "--noheader", "--partition=low", "--format=%t").split()

    def submit(self, *words: str) -> str:
        """Submit a job; return its id."""
        return self("sbatch", "--parsable", *words).strip()

    def job(self, job_id: str) -> dict[str, str]:
        """Return what Slurm says of a job."""
        said = self("scontrol", "--oneliner", "show", "job", job_id)
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def wait_for_state(self, job_id: str, *states: str, seconds: float = 180) -> None:
        """Wait until the job has one of these states."""
        wait_for(
            lambda: self.job(job_id)["JobState"] in states,
            seconds,
            lambda: f"{self.job(job_id)}\n{self.log()}",
        )

    def __call__(self, *words: str) -> str:
        """Run a command of Slurm; return what it prints."""
        done = subprocess.run(
            words,
            env=self.env,
            cwd=self.folder.parent,
            user=self.user.pw_uid if words[0] == "sbatch" else None,
            group=self.user.pw_gid if words[0] == "sbatch" else None,
            extra_groups=[] if words[0] == "sbatch" else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if words[0] == "sinfo" and done.returncode:
            return ""  # the controller is not yet there
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        """Return the ends of all logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    def end(self) -> None:
        """End all jobs and processes, and remove their control groups."""
        for node in self.nodes:
            if node in self._started:
                self.kill_node(node)
        for name in ("slurmctld", "munged"):
            if (process := self._started.pop(name, None)) is not None:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
        for node in self.nodes:
            for group in sorted(_FREEZER.glob(f"slurm_{node}/**/"), reverse=True):
                wait_for(
                    lambda group=group: _is_removed(group)
                )  # when the node's processes are gone

    def _begin(self, name: str, command: list[str]) -> None:
        path = {"PATH": f"{self.env['PATH']}:/usr/sbin:/sbin"}
        with (self.folder / f"{name}-start.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                command,
                env=self.env | path,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _is_removed(group: Path) -> bool:
    """Remove a control group, if it has no process; return whether it is gone."""
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def main() -> None:
    """Let other users than root see this Python, CRIU and the checkout in this mount namespace, where they lie in root's home."""
    criu = criu_program.find()
    assert criu is not None, "there is no CRIU"
    open_folders([Path(sys.base_prefix).resolve(), criu.resolve().parent, ROOT])


if __name__ == "__main__":
    main()
