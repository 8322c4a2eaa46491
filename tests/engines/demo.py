"""A JupyterHub stops its users' servers in several ways, and each user finds variables and outputs again: `make demo-hub`.

The servers are containers of an image of this checkout where podman and mmdebstrap are there and root runs this, else local processes.
Any difference ends it with an error.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from jupyter_gpuckpt.host import criu_program
from tests.conftest import environment, folder_of_a_daemon, wait_for
from tests.engines.docker_hub import DockerHub
from tests.engines.podman_api import PodmanApi
from tests.hub.conftest import Hub
from tests.hub.test_stops import Two
from tests.server.test_time_travel import branch


class Steps:
    """What was done, with the time that it took."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def add(self, step: str, detail: str = "") -> None:
        """Print a step that has just ended."""
        now = time.monotonic()
        print(f"{step:<38} {now - self._began:>6.1f} s   {detail}".rstrip(), flush=True)
        self._began = now


def demonstrate(run: Callable[[ExitStack], None]) -> int:
    """Run a demo; return 0 if nothing was lost."""
    try:
        with ExitStack() as stack:
            run(stack)
    except AssertionError as failure:
        print(f"\nThe demo failed: {failure}", file=sys.stderr)
        return 1
    return 0


def run(stack: ExitStack) -> None:
    """Start the hub, and stop its servers again and again."""
    criu = criu_program.find()
    assert criu is not None, "there is no CRIU"
    folder = stack.enter_context(folder_of_a_daemon())
    steps = Steps()
    hub = (
        local_hub(folder, criu) if PodmanApi.obstacle() else docker_hub(folder, criu, stack, steps)
    )
    stack.callback(end, hub)
    hub.start()
    steps.add("hub started")
    two = Two(hub)
    alice, bob = two.users
    steps.add("alice and bob: servers, a cell each")

    alice.stop()
    steps.add("alice stops her server", suspended(hub))
    bob.stop(hub.user("ada").token)
    steps.add("an administrator stops bob's server", suspended(hub))
    two.find_again()
    steps.add("both start their servers", "each finds the own variables only")

    two.close_pages()
    hub.stop()
    steps.add("the hub stops, and their servers", suspended(hub, 2))
    hub.start()
    two.find_again()
    steps.add("hub and servers start", "each finds the own variables only")
    if isinstance(hub, DockerHub):
        kill_container(hub, two, steps)


def kill_container(hub: DockerHub, two: Two, steps: Steps) -> None:
    """Kill a container without a word to its server."""
    alice = two.users[0]
    (session,) = alice.get("api/sessions")
    kernel_id = session["kernel"]["id"]
    alice.do("save", kernel_id)
    steps.add("alice saves a snapshot")
    alice.close_pages()
    hub.podman("kill", hub.container("alice"))
    wait_for(lambda: alice.model is None, said=hub.log)
    steps.add("her container is killed")
    alice.start()
    (snapshot, *_) = alice.get("api/gpuckpt/snapshots")["snapshots"]
    said = branch(alice, snapshot["snapshot_id"]).run("print(mine, count)")
    assert said == "alice 2\n", said
    steps.add("alice starts her server, and restores", "her variables are those of the snapshot")


def suspended(hub: Hub, servers: int = 1) -> str:
    """Return what the hub's log says last of kernels that were suspended."""
    lines = [line for line in hub.log_path.read_text().splitlines() if "suspended, " in line]
    assert len(lines) >= servers, hub.log()
    said = [line.rpartition("] ")[2] for line in lines[-servers:]]
    assert all("1 of 1 kernel suspended" in line for line in said), said
    return "; ".join(sorted(said))


def local_hub(folder: Path, criu: Path) -> Hub:
    """Return a hub whose users' servers are processes of this machine."""
    print(f"Servers are local processes: {PodmanApi.obstacle()}.")
    return Hub(folder, environment(criu, folder))


def docker_hub(folder: Path, criu: Path, stack: ExitStack, steps: Steps) -> DockerHub:
    """Return a hub whose users' servers are containers."""
    podman = PodmanApi()
    stack.callback(podman.end)
    podman.start()
    print("Servers are containers, by podman's Docker API.")
    podman.build()
    steps.add("image built")
    return DockerHub(folder, environment(criu, folder), podman)


def end(hub: Hub) -> None:
    """End a hub that still runs."""
    if hub.process is not None and hub.process.poll() is None:
        hub.stop(signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(demonstrate(run))
