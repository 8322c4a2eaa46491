"""The page docs/containers.md out of the lines of trials: `make containers`.

GPUCKPT_CONTAINER_LINES=lines.jsonl python -m pytest tests/containers -m "slow or not slow"
python -m tests.containers.report lines.jsonl >docs/containers.md
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from jupyter_gpuckpt.host import doctor_remedies
from tests.containers.rows import ROWS

#: Where the lines of trials are kept.
VARIABLE = "GPUCKPT_CONTAINER_LINES"

INTRODUCTION = f"""\
# Containers

Kernels can be saved in a container without any capability, as root or as an ordinary user. Two of a container's defaults
prevent it: its seccomp filter, which refuses user namespaces or some of CRIU's system calls, and the hidden parts of its /proc.

Write the filter to a file once, on the machine that starts the containers:

```sh
jupyter gpuckpt doctor --seccomp >{doctor_remedies.SECCOMP_FILE}
```

docker:

```sh
{doctor_remedies.CONTAINER["docker"]}
```

podman:

```sh
{doctor_remedies.CONTAINER["podman"]}
```

Kubernetes, with the file in the kubelet's folder of seccomp profiles; `deploy/kubernetes` has whole pods
([JupyterHub](jupyterhub.md#kubernetes)). This was not tried on a cluster. Newer versions allow
`procMount: Unmasked` only together with `hostUsers: false`.

```yaml
{doctor_remedies.CONTAINER["kubernetes"]}
```

The filter is podman's default filter, without the system calls that it allows only with capabilities, and with `chroot`, `kcmp`,
`process_madvise` and `vmsplice`. Unlike docker's default filter it lets processes make user namespaces.

`apparmor=unconfined` is for machines with docker's AppArmor profile, which refuses mounts. It was not tried, because the
machine of the tests has no AppArmor.

Root without `CAP_SETFCAP` needs that capability, because otherwise Linux does not let root map its own id. Other users need none.

`jupyter gpuckpt doctor` suspends and resumes a small program and reports what is missing. If something is missing, kernels start but
cannot be saved, and a notification has the same line.

When a container stops, all its processes end. Servers suspend their kernels on SIGTERM: give them time (`--stop-timeout`,
`terminationGracePeriodSeconds`), and put the data directory (`JUPYTER_GPUCKPT_DATA_DIR`) on a volume.
"""

HOW = """\
`make containers` runs all rows, those of docker if it is installed, and writes this page; `make test` runs the rows marked with °,
for which docker's default filter is rebuilt from podman's.
"""


class Line(msgspec.Struct):
    """The result of a row: reason and hint of a kernel that was started plainly, both empty where it was saved."""

    row: str
    reason: str
    hint: str


def page(lines: list[Line]) -> str:
    """Return the page as Markdown, in the order of the rows."""
    last = {line.row: line for line in lines}
    versions = [_version(program) for program in ("podman", "dockerd")]
    parts = [
        INTRODUCTION,
        "## What was tried\n",
        f"In each a kernel with threads, a child process, shared memory, a lock and a database was saved, suspended and resumed."
        f" Run on {time.strftime('%Y-%m-%d')}: Linux {platform.release()}, {', '.join(filter(None, versions))};"
        f" {len(last)} rows of {len(ROWS)}.\n",
        "| Container | Options | Kernels |",
        "| --- | --- | --- |",
    ]
    for row in ROWS:
        if line := last.get(row.name):
            result = f"start plainly: {line.reason}" if line.reason else "are saved"
            mark = " °" if row.quick else ""
            parts.append(f"| {row.title}{mark} | `{row.options or '(none)'}` | {result} |")
        else:
            parts.append(f"| {row.title} | `{row.options or '(none)'}` | **not run, or failed** |")
    return "\n".join([*parts, "", HOW])


def _version(program: str) -> str:
    if not shutil.which(program):
        return ""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return said.stdout.strip().partition(",")[0]


if __name__ == "__main__":
    trials = Path(sys.argv[1]).read_bytes().splitlines()
    print(page([msgspec.json.decode(line, type=Line) for line in trials]), end="")
