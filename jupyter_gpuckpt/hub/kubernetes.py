"""The spawner for servers in pods of Kubernetes.

Covers: the time that the end of a pod may take, and the settings without which no kernel can be saved in it (pods.py).
Does not cover: the volume on which snapshots outlive the pod, and the seccomp filter's file on the nodes.
"""
# kubespawner carries no types:
# mypy: allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from kubespawner import KubeSpawner
from traitlets import Enum, Unicode, default

from .. import pods
from .spawner import GpuCkptSpawnerMixin

#: The names of a pod's grace period in c.KubeSpawner.extra_pod_config: as in YAML, and as in the Python client.
_GRACE = ("terminationGracePeriodSeconds", "termination_grace_period_seconds")
#: The time that the hub waits for a pod to vanish beyond the pod's own.
_VANISH_SECONDS = 30
_DEFAULT_START_TIMEOUT = 60


#: Within calls in which KubeSpawner itself may stop a pod: whether at once. A variable of the task, because the hub may stop it meanwhile.
_own_stop: ContextVar[bool | None] = ContextVar("_own_stop", default=None)


@contextmanager
def _own_stops(*, now: bool) -> Iterator[None]:
    """Let stops in this block, of this task, be KubeSpawner's own."""
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
        pods.PRIVILEGES,
        "user-namespace",
        help="""How pods get what kernels need, besides the seccomp filter of `jupyter gpuckpt kubernetes node-filter`.
        "user-namespace": hostUsers is false and procMount is Unmasked, without any capability, for Kubernetes 1.33 and newer.
        "capabilities": root with SYS_ADMIN and three more, for older versions; such a pod's user has power over the node.""",
    ).tag(config=True)

    seccomp_file = Unicode(
        pods.SECCOMP_FILE,
        help="""The file of the seccomp filter, relative to the kubelet's folder of seccomp profiles on the nodes.""",
    ).tag(config=True)

    @default("delete_grace_period")
    def _default_delete_grace_period(self) -> int:
        return self.stop_seconds

    @default("start_timeout")
    def _default_start_timeout(self) -> int:
        # KubeSpawner also waits as long for the end of a pod.
        return max(_DEFAULT_START_TIMEOUT, self.stop_seconds + _VANISH_SECONDS)

    def check_configuration(self) -> None:
        """Refuse grace periods that are shorter than a suspend may take, and warn if no volume keeps snapshots."""
        self.require_time("c.KubeSpawner.delete_grace_period", self.delete_grace_period)
        # The hub reports a failure if a pod is still there after this time.
        self.require_time("c.KubeSpawner.start_timeout", self.start_timeout)
        for name in _GRACE:
            if name in self.extra_pod_config:
                setting = f'c.KubeSpawner.extra_pod_config["{name}"]'
                self.require_time(setting, self.extra_pod_config[name])
        if not self._has_volume():
            self.log.warning(
                "c.KubeSpawner has neither storage_pvc_ensure nor volumes: the snapshots of a user are removed with the pod, unless"
                " a remote has them."
            )

    async def get_pod_manifest(self) -> object:
        """Return the base class's pod, with what it does not set and kernels need."""
        # A profile of the user's choice may have changed the settings since the hub's start.
        self.check_configuration()
        pod = await super().get_pod_manifest()
        wanted = pods.pod_settings(self.privileges, self.suspend_timeout)
        names = {name: attribute for attribute, name in pod.spec.attribute_map.items()}
        for name, value in wanted.items():
            if getattr(pod.spec, names[name]) is None:
                setattr(pod.spec, names[name], value)
        notebook = pod.spec.containers[0]
        hooks = self.lifecycle_hooks
        if not ("preStop" in hooks or "pre_stop" in hooks):
            stop = pods.pre_stop(self.suspend_timeout, disk_survives=self._has_volume())
            notebook.lifecycle = {**hooks, "preStop": stop}
        if not self.privileged:
            notebook.security_context = self._security_context(notebook.security_context or {})
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
            # Two times: the first may have stopped a pod in the way.
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
        ours = pods.security_context(self.privileges, self.seccomp_file)
        # KubeSpawner always sets allowPrivilegeEscalation, to false by default.
        kept = own if callable(configured) else {name: own[name] for name in own.keys() & explicit}
        return own | ours | kept

    def _has_volume(self) -> bool:
        return bool(self.storage_pvc_ensure or self.volumes)
