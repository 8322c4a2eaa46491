"""The spawner for servers in pods of Kubernetes.

Covers: the time that the end of a pod may take, and the settings without which no kernel can be saved in it. deploy/kubernetes has
files with the same settings for pods without a hub.
Does not cover: the volume on which snapshots outlive the pod, and the seccomp filter's file on the nodes.
"""
# kubespawner carries no types:
# mypy: allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from kubernetes_asyncio.client import V1EnvVar, V1Lifecycle
from kubespawner import KubeSpawner
from traitlets import Enum, default, observe

from .pod_volumes import keep_snapshots
from .spawner import GpuCkptSpawnerMixin

#: The filter's file in the kubelet's folder of seccomp profiles, as deploy/kubernetes/node-filter.yaml writes it.
SECCOMP_FILE = "gpuckpt-seccomp.json"
#: Where the snapshots of the user of the image that deploy/build-image builds are.
HOME = "/home/jovyan"
#: The capabilities with which root can save kernels, even if parts of /proc are hidden.
_CAPABILITIES = ["SYS_ADMIN", "SYS_PTRACE", "SYS_TIME", "NET_ADMIN"]


#: The names of a pod's grace period in c.KubeSpawner.extra_pod_config: as in YAML, and as in the Python client.
_GRACE = ("terminationGracePeriodSeconds", "termination_grace_period_seconds")
#: The time that the hub waits for a pod to vanish beyond the pod's own.
_VANISH_SECONDS = 30
_DEFAULT_START_TIMEOUT = 60
_ROOT, _HOME_OF_ROOT = 0, "/root"


#: Set while KubeSpawner itself may stop a pod: True to stop it at once. It belongs to the task, because the hub may stop the pod meanwhile.
_own_stop: ContextVar[bool | None] = ContextVar("_own_stop", default=None)


def container_security(privileges: str) -> dict[str, Any]:
    """Return the security context of a container."""
    filters = {
        # Some container runtimes refuse vmsplice, which CRIU needs, even to root with all capabilities.
        "seccompProfile": {"type": "Localhost", "localhostProfile": SECCOMP_FILE},
        # The runtimes' default profile refuses mounts.
        "appArmorProfile": {"type": "Unconfined"},
    }
    if privileges == "capabilities":
        return {
            "runAsUser": 0,
            "allowPrivilegeEscalation": True,  # Kubernetes requires it with SYS_ADMIN
            "capabilities": {"add": list(_CAPABILITIES)},
            **filters,
        }
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "procMount": "Unmasked",
        **filters,
    }


def pre_stop_hook(suspend_seconds: float, *, disk_survives: bool) -> dict[str, Any]:
    """Return the preStop hook: it suspends the kernels while their server still runs, so that open pages show it.

    `disk_survives`: the snapshots are on a volume, so uploads to a remote need not be awaited.
    """
    command = ["jupyter", "gpuckpt", "notice", f"--within={math.ceil(suspend_seconds)}s"]
    return {"exec": {"command": [*command, *(["--disk-survives"] if disk_survives else [])]}}


@contextmanager
def _own_stops(*, now: bool) -> Iterator[None]:
    """Treat stops by this task inside the block as KubeSpawner's own."""
    token = _own_stop.set(now)
    try:
        yield
    finally:
        _own_stop.reset(token)


class GpuCkptKubeSpawner(GpuCkptSpawnerMixin, KubeSpawner):  # type: ignore[misc]
    """KubeSpawner with the time that a suspend takes, and with the settings that kernels need in a pod.

    A setting that the configuration has is not changed.
    """

    privileges = Enum(
        ("user-namespace", "capabilities"),
        "user-namespace",
        help="""How pods get what kernels need, besides the seccomp filter of deploy/kubernetes/node-filter.yaml.
        "user-namespace": hostUsers is false and procMount is Unmasked, without any capability, for Kubernetes 1.33 and newer.
        "capabilities": root with SYS_ADMIN and three more, for older versions; such a pod's user has power over the node.""",
    ).tag(config=True)

    #: The times that this class has chosen, and not the configuration.
    _chosen: Mapping[str, int] = MappingProxyType({})

    @default("delete_grace_period")
    def _default_delete_grace_period(self) -> int:
        return self._choose("delete_grace_period", self.stop_seconds)

    @default("start_timeout")
    def _default_start_timeout(self) -> int:
        # A start may first wait for the end of a pod in the way. KubeSpawner's stop waits as long for the end of the pod.
        seconds = self.stop_seconds + _VANISH_SECONDS + _DEFAULT_START_TIMEOUT
        return self._choose("start_timeout", seconds)

    @observe("suspend_timeout")
    def _choose_anew(self, _change: object) -> None:
        """Choose the times anew that depend on it: a profile or a hook may set it after they were chosen."""
        for name, seconds in self._chosen.items():
            if getattr(self, name) == seconds:
                setattr(self, name, getattr(self, f"_default_{name}")())

    def check_configuration(self) -> None:
        """Refuse grace periods that are shorter than a suspend may take, and warn if no volume keeps snapshots."""
        self.require_time("c.KubeSpawner.delete_grace_period", self.delete_grace_period)
        # The hub reports a failure if a pod is still there after this time.
        self.require_time("c.KubeSpawner.start_timeout", self.start_timeout)
        for name in _GRACE:
            if name in self.extra_pod_config:
                setting = f'c.KubeSpawner.extra_pod_config["{name}"]'
                self.require_time(setting, self.extra_pod_config[name])
        user = self.uid
        if self.privileges == "capabilities" and isinstance(user, int) and user != _ROOT:
            self.log.warning(
                'With c.GpuCkptKubeSpawner.privileges = "capabilities" kernels can only be saved by root, and c.KubeSpawner.uid is %d.'
                " Set it to 0, with --allow-root in c.KubeSpawner.cmd.",
                user,
            )
        if self.privileges == "capabilities" and user is None:
            user = _ROOT
        volumes, mounts = map(self._sorted_dict_values, (self.volumes, self.volume_mounts))
        if not self._keeps_snapshots(volumes, mounts, self.environment, user):
            self.log.warning(
                "c.KubeSpawner.volumes and volume_mounts have no lasting volume at the directory of the snapshots, which is in %s unless"
                " c.KubeSpawner.environment has HOME or JUPYTER_GPUCKPT_DATA_DIR: the snapshots of a user are removed with the pod,"
                " unless a remote has them.",
                HOME,
            )

    async def get_pod_manifest(self) -> object:
        """Return the base class's pod, with what it does not set and kernels need."""
        # A profile of the user's choice may have changed the settings since the hub's start.
        self.check_configuration()
        pod = await super().get_pod_manifest()
        wanted: dict[str, Any] = {"terminationGracePeriodSeconds": self.stop_seconds}
        if self.privileges == "user-namespace":
            wanted["hostUsers"] = False
        names = {name: attribute for attribute, name in pod.spec.attribute_map.items()}
        for name, value in wanted.items():
            if getattr(pod.spec, names[name]) is None:
                setattr(pod.spec, names[name], value)
        notebook = pod.spec.containers[0]
        if not self.privileged:
            notebook.security_context = self._security_context(notebook.security_context or {})
        whole = pod.spec.security_context or {}
        user = (notebook.security_context or {}).get("runAsUser", whole.get("runAsUser"))
        volumes, mounts = _dicts(pod.spec.volumes), _dicts(notebook.volume_mounts)
        environ = {one["name"]: one.get("value") or one for one in _dicts(notebook.env)}
        # Kubernetes gives root the home /root, and the image's user has another.
        moves_home = self.privileges == "capabilities" and user == _ROOT and "HOME" not in environ
        if moves_home and not keep_snapshots(volumes, mounts, environ, _HOME_OF_ROOT):
            notebook.env = [*(notebook.env or ()), V1EnvVar(name="HOME", value=HOME)]
        survives = self._keeps_snapshots(volumes, mounts, environ, user)
        stop = pre_stop_hook(self.suspend_timeout, disk_survives=survives)
        hooks = notebook.lifecycle = notebook.lifecycle or V1Lifecycle()
        if isinstance(hooks, dict):  # from c.KubeSpawner.extra_container_config
            notebook.lifecycle = hooks if "pre_stop" in hooks else {"preStop": stop} | hooks
        elif hooks.pre_stop is None:
            hooks.pre_stop = stop
        return pod

    async def _make_create_pod_request(self, pod: Any, request_timeout: float) -> object:  # noqa: ANN401 - kubespawner's own
        """Create the pod, unless a hook of the configuration has given it too little time."""
        self.require_time(
            "c.KubeSpawner.modify_pod_hook and a grace period",
            pod.spec.termination_grace_period_seconds,
        )
        create: Callable[..., Any] = super()._make_create_pod_request
        # A pod in the way of this one, which KubeSpawner would kill, gets its time: it may be suspending kernels, because it is evicted.
        with _own_stops(now=False):
            # Two attempts: the first may only have stopped a pod in the way.
            created: object = await create(pod, request_timeout)
            return created or await create(pod, request_timeout)

    async def poll(self) -> object:
        """Return the pod's exit status, or None while it runs; KubeSpawner then also deletes a pod whose container has ended."""
        with _own_stops(now=True):
            status: object = await super().poll()
            return status

    async def stop(self, now: bool = False) -> None:
        """Suspend the kernels, then delete the pod. The stops of KubeSpawner itself are no stops of the hub: nothing is suspended."""
        own = _own_stop.get()
        if own is None:
            await super().stop(now)
        else:
            await KubeSpawner.stop(self, own)

    def _security_context(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return a container's security context: ours, changed by what the configuration sets."""
        configured = self.container_security_context
        explicit = set() if callable(configured) else set(configured)
        if self.uid is not None:
            explicit.add("runAsUser")
        ours = container_security(self.privileges)
        # KubeSpawner always sets allowPrivilegeEscalation, to false by default.
        kept = own if callable(configured) else {name: own[name] for name in own.keys() & explicit}
        return own | ours | kept

    def _keeps_snapshots(
        self,
        volumes: list[dict[str, Any]],
        mounts: list[dict[str, Any]],
        environ: Mapping[str, object],
        user: object,
    ) -> bool:
        """Return whether the snapshots outlive a pod with these volumes, mounts and variables, whose servers are run by `user`."""
        homes = [_HOME_OF_ROOT] if user == _ROOT else [HOME]
        if self.privileges == "capabilities":
            homes.append(HOME)
        return any(keep_snapshots(volumes, mounts, environ, home) for home in homes)

    def _choose(self, name: str, seconds: int) -> int:
        self._chosen = {**self._chosen, name: seconds}
        return seconds


def _dicts(models: Iterable[Any] | None) -> list[dict[str, Any]]:
    """Return models of the Python client as dictionaries; the configuration may have put dictionaries among them."""
    return [one if isinstance(one, dict) else one.to_dict() for one in models or ()]
