"""The spawner for servers in containers of Docker, or of podman by its Docker API.

Covers: the time that the stop of a container may take, and the options without which no kernel can be saved in it (docs/containers.md).
Does not cover: the volume on which snapshots outlive the container, which is a setting of DockerSpawner.
"""
# dockerspawner carries no types:
# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docker.errors import NotFound
from dockerspawner import DockerSpawner
from traitlets import Unicode

from .spawner import GpuCkptSpawnerMixin

#: The filter that `jupyter gpuckpt doctor --seccomp` prints.
_SECCOMP_FILE = Path(__file__).parent.parent / "profiles/seccomp.json"
_ROOT = frozenset({"", "0", "root"})


class GpuCkptDockerSpawner(GpuCkptSpawnerMixin, DockerSpawner):  # type: ignore[misc]
    """DockerSpawner with the time that a suspend takes, and with the options that kernels need in a container.

    An option that the configuration sets is not changed.
    """

    seccomp_file = Unicode(
        str(_SECCOMP_FILE),
        help="""The file of the seccomp filter for containers. Docker gets its content; podman reads it itself, so for podman the
        path must be valid where podman runs.""",
    ).tag(config=True)

    _is_podman = False
    _is_root = True
    _stop_seconds = 0

    def check_configuration(self) -> None:
        """Refuse what cuts suspends short, and warn if no volume keeps snapshots."""
        if not callable(self.extra_create_kwargs):
            self._require_stop_timeout(self.extra_create_kwargs)
        if self.remove and not (self.volumes or self.mounts):
            self.log.warning(
                "c.DockerSpawner.remove is True, and neither volumes nor mounts are set: the snapshots of a user are removed with"
                " the container, unless a remote has them."
            )

    def is_on_this_machine(self) -> bool:
        """Return whether Docker is asked by a unix socket, and so on the hub's machine."""
        url = str(self.client_kwargs.get("base_url") or os.environ.get("DOCKER_HOST") or "unix://")
        return url.startswith(("unix:", "http+unix:"))

    async def create_object(self) -> object:
        """Create the container, with options that depend on the engine and on the image's user."""
        engine = await self.docker("version")
        self._is_podman = any(
            "podman" in component.get("Name", "").lower()
            for component in engine.get("Components") or ()
        )
        image = await self.docker("inspect_image", self.image)
        self._is_root = _is_root(image["Config"].get("User") or "")
        created: object = await super().create_object()
        return created

    async def stop_object(self) -> None:
        """Stop the container, and wait for it as long as a suspend may take."""
        try:
            container = await self.docker("inspect_container", self.container_id)
        except NotFound:  # it has just ended by itself, which the base class logs
            container = {"Config": {}}
        # A container that was created by DockerSpawner itself has no stop timeout.
        own = container["Config"].get("StopTimeout") or 0
        self._stop_seconds = max(own, self.stop_seconds)
        await super().stop_object()

    def docker(
        self,
        method: str,
        *args: object,
        **kwargs: Any,  # noqa: ANN401 - docker-py's own signatures take anything
    ) -> asyncio.Future[Any]:
        """Call a method of docker-py with this spawner's options."""
        if method == "create_container":
            self._add_options(kwargs)
        elif method == "stop":
            # docker-py waits for the reply for its own timeout plus this one, which is 10 s by default.
            kwargs.setdefault("timeout", self._stop_seconds)
        call: Callable[..., asyncio.Future[Any]] = super().docker
        return call(method, *args, **kwargs)

    def _require_stop_timeout(self, options: dict[str, Any]) -> None:
        if (seconds := options.get("stop_timeout")) is not None:
            self.require_time('c.DockerSpawner.extra_create_kwargs["stop_timeout"]', seconds)

    def _add_options(self, options: dict[str, Any]) -> None:
        self._require_stop_timeout(options)
        if options.get("stop_timeout") is None:
            options["stop_timeout"] = self.stop_seconds
        host = options["host_config"]
        if host.get("Privileged"):
            return
        security = host["SecurityOpt"] = list(host.get("SecurityOpt") or ())
        named = {option.replace(":", "=", 1).partition("=")[0] for option in security}
        wanted = {"seccomp": f"seccomp={self._seccomp()}"}
        if self._is_podman:
            wanted["unmask"] = "unmask=ALL"
        else:
            wanted["apparmor"] = "apparmor=unconfined"
            # As by `docker run --security-opt systempaths=unconfined`: no part of /proc is masked.
            host.setdefault("MaskedPaths", [])
            host.setdefault("ReadonlyPaths", [])
        user = options.get("user")
        is_root = self._is_root if user in {None, ""} else _is_root(user)
        if not is_root:
            wanted["no-new-privileges"] = "no-new-privileges"
            host.setdefault("CapDrop", ["ALL"])
        security += [option for name, option in wanted.items() if name not in named]

    def _seccomp(self) -> str:
        path = Path(self.seccomp_file)
        return str(path) if self._is_podman else path.read_text()


def _is_root(user: object) -> bool:
    """Return whether a container's user is root: a name or an id, which a group may follow; empty means root."""
    return str(user).partition(":")[0] in _ROOT
