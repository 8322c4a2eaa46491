"""A podman of the tests' own that speaks Docker's API, and the image of users' servers, built by deploy/build-image."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from tests.conftest import wait_for
from tests.containers import machine_files
from tests.engines import pod_runtime

ROOT = Path(__file__).parent.parent.parent
IMAGE = "localhost/jupyter-gpuckpt:latest"
_BASE = "localhost/gpuckpt-base:latest"
#: What the base image is; Debian's mirror is reached where no registry is.
_SUITE, _MIRROR = "bookworm", "http://deb.debian.org/debian"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_BUILD_SECONDS = 1800


class PodmanApi:
    """Images stay in the user's cache for the next time; containers and volumes do not."""

    def __init__(self) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        # podman wants paths of at most 50 characters.
        self._folder = cache / "jupyter-gpuckpt/engines"
        self._folder.mkdir(parents=True, exist_ok=True)
        self.log_path = self._folder / "log"
        self.url = f"unix://{self._folder}/socket"
        conf = self._folder / "containers.conf"
        lines = [
            "[containers]",
            f"default_ulimits = {json.dumps(machine_files.limits())}",
            "[engine]",
            'cgroup_manager = "cgroupfs"',
            'events_logger = "file"',
            *(['runtime = "runc"'] if shutil.which("runc") else []),
        ]
        # Known to every podman, because pods of tests that were killed can only be removed with it.
        runtime = self._folder / "pod-runtime"
        runtime.write_text(f'#!/bin/sh\nexec {sys.executable} {pod_runtime.__file__} "$@"\n')
        runtime.chmod(0o755)
        lines += ["[engine.runtimes]", f'pod = ["{runtime}"]']
        conf.write_text("\n".join(lines))
        self.environment = os.environ | {"CONTAINERS_CONF": str(conf)}
        kept = [f"--{name}={self._folder / name}" for name in ("root", "runroot", "tmpdir")]
        self.command = ["podman", *kept, "--storage-driver=overlay"]
        self._lock = (self._folder / "lock").open("w")
        self._service: subprocess.Popen[bytes] | None = None

    @staticmethod
    def obstacle() -> str:
        """Return why it cannot be used here; an empty string if it can."""
        for program in ("podman", "mmdebstrap"):
            if not shutil.which(program):
                return f"{program} is not installed"
        return "the containers of these tests take root" if os.geteuid() else ""

    def start(self) -> None:
        """Start the service, without a container or volume of an earlier one; waits for another user of the same cache."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.remove_all()
        with self.log_path.open("wb") as log:
            self._service = subprocess.Popen(
                [*self.command, "system", "service", "--time=0", self.url],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self._answers, 60, self.log_path.read_text)

    def build(self) -> None:
        """Build the image; what did not change since the last time is taken from there."""
        if _BASE not in self("images", "--format={{.Repository}}:{{.Tag}}").split():
            with tempfile.TemporaryDirectory() as folder:
                base = Path(folder, "base.tar")
                made = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", _SUITE]
                self._checked([*made, str(base), _MIRROR])
                self("import", "--quiet", str(base), _BASE)
        options = ["--network=host", "--build-arg", f"BASE={_BASE}"]
        if _CERTIFICATES.exists():
            options += ["--volume", f"{_CERTIFICATES}:/run/ca.crt:ro"]
            options += ["--build-arg", "PIP_CERT=/run/ca.crt"]
        self._checked([str(ROOT / "deploy/build-image"), *options])

    def build_from(self, lines: str) -> None:
        """Give the image's name to a new one, made of it by these lines."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "Containerfile").write_text(f"FROM {IMAGE}\n{lines}\n")
            self("build", "--network=host", "--tag", IMAGE, folder)

    def remove_all(self) -> None:
        """Remove all pods, containers and volumes."""
        self("pod", "rm", "--all", "--force", "--time", "0")
        self("rm", "--all", "--force", "--time", "0")
        self("volume", "rm", "--all", "--force")

    def __call__(self, *words: str, given: str = "") -> str:
        """Run a podman command with something on its standard input; return what it prints."""
        return self._checked([*self.command, *words], given)

    def end(self) -> None:
        """Stop the service and remove everything but images."""
        self.remove_all()
        if self._service:
            self._service.send_signal(signal.SIGTERM)
            self._service.wait(60)
        self._lock.close()

    def _checked(self, command: list[str], given: str = "") -> str:
        engine = {"ENGINE": " ".join(self.command), "PYTHON": sys.executable}
        done = subprocess.run(
            command,
            env=self.environment | engine,
            input=given,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def _answers(self) -> bool:
        try:
            with httpx.Client(
                transport=httpx.HTTPTransport(uds=self.url.removeprefix("unix://"))
            ) as http:
                return http.get("http://podman/_ping").is_success
        except httpx.TransportError:
            return False
