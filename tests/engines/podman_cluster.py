"""A stand-in for a cluster of one node: Kubernetes' API as far as kubespawner uses it, and pods that really run, by `podman kube play`.

What podman 4.3 leaves out of a manifest is done here as the kubelet does it: preStop, the grace period, procMount, the seccomp profile's
file, and an address in the cluster's network.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from jupyter_gpuckpt.hub import pod_spawner
from tests.conftest import wait_for
from tests.engines import pod_runtime
from tests.engines.podman_api import ROOT, PodmanApi

#: The network of the pods, and the address in it by which they reach what listens on 127.0.0.1 here.
_BRIDGE, _NETWORK, GATEWAY = "gpuckpt-pods", "10.231.7.{}", "10.231.7.1"
#: The ids that user namespaces of pods get: podman takes those of a user by this name.
_IDS = "containers:300000:1000000\n"
#: All pods get the same, so that each finds its files on a volume again, as by the kubelet's idmapped mounts.
_OWN_USERS = "auto:size=65536,uidmapping=0:300000:65536,gidmapping=0:300000:65536"
_WATCH_SECONDS = 5
#: What the kubelet leaves a container after its preStop hook at least.
_LEAST_STOP_SECONDS = 2


@dataclass
class Ended:
    """How a pod ended. `hook`: what its preStop hook returned; None if it had none, or it did not end in time."""

    name: str
    seconds: float
    exit_code: int
    hook: subprocess.CompletedProcess[str] | None


@dataclass
class _Pod:
    manifest: dict[str, Any]
    number: int
    phase: str = "Pending"
    exit_code: int | None = None
    deleting: bool = False
    played: threading.Event = field(default_factory=threading.Event)


class Cluster:
    """The API server, the kubelet and the network."""

    def __init__(self, folder: Path, podman: PodmanApi) -> None:
        self.ended: list[Ended] = []
        self.folder, self._podman = folder, podman
        self._pods: dict[str, _Pod] = {}
        self._claims: set[str] = set()
        self._numbers, self._version = 1, 1
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._closers: list[Callable[[], object]] = []

    @staticmethod
    def obstacle() -> str:
        """Return why pods cannot be started here, where containers can; an empty string if they can."""
        missing = [name for name in ("catatonit", "ip", "runc") if not shutil.which(name)]
        return f"{' and '.join(missing)} not installed" if missing else ""

    @property
    def kubeconfig(self) -> Path:
        """Return the file by which clients find the API server."""
        path = self.folder / "kubeconfig"
        url = f"http://127.0.0.1:{self._server.server_port}"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "podman",
            "contexts": [{"name": "podman", "context": {"cluster": "podman", "user": "tests"}}],
            "clusters": [{"name": "podman", "cluster": {"server": url}}],
            "users": [{"name": "tests", "user": {}}],
        }
        path.write_text(json.dumps(content))
        return path

    def start(self) -> Cluster:
        """Start the API server and make the network."""
        self._make_user_ids()
        self._make_configuration()
        if Path("/sys/class/net", _BRIDGE).exists():  # of tests that were killed
            self._ip("link", "delete", _BRIDGE)
        self._ip("link", "add", _BRIDGE, "type", "bridge")
        self._closers.append(lambda: self._ip("link", "delete", _BRIDGE))
        self._ip("address", "add", f"{GATEWAY}/24", "dev", _BRIDGE)
        self._ip("link", "set", _BRIDGE, "up")
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._closers += [self._server.server_close, self._server.shutdown]
        return self

    def end(self) -> None:
        """Remove the pods and the network."""
        for name in [name for name, pod in self._pods.items() if not pod.deleting]:
            self._terminate(name, 0)
        wait_for(lambda: not self._pods)
        while self._closers:
            self._closers.pop()()

    def serve(self, port: int) -> None:
        """Forward connections of pods to this port of 127.0.0.1, as a Service would."""
        self._forward((GATEWAY, port), ("127.0.0.1", port))

    def publish(self, name: str, port: int, target: int) -> None:
        """Let a port of 127.0.0.1 lead to a pod's, as `kubectl port-forward`."""
        self._forward(("127.0.0.1", port), (self.address(name), target))

    def _forward(self, address: tuple[str, int], target: tuple[str, int]) -> None:
        listener = socket.create_server(address)
        self._closers.append(lambda: listener.shutdown(socket.SHUT_RDWR))
        threading.Thread(target=_forward, args=(listener, target), daemon=True).start()

    def apply(self, manifest: dict[str, Any]) -> None:
        """Create a pod and wait until its container runs, as `kubectl apply` and `kubectl wait`."""
        self._create(manifest)
        self._pods[manifest["metadata"]["name"]].played.wait(300)

    def names(self) -> list[str]:
        """Return the names of the pods."""
        return list(self._pods)

    def address(self, name: str) -> str:
        """Return a pod's address."""
        return _NETWORK.format(self._pods[name].number)

    def evict(self, name: str, grace: int | None = None) -> Ended:
        """End a pod as `kubectl drain` does, with its own grace period, and wait for its end."""
        return self._terminate(name, grace)

    def slow_down(self, name: str) -> None:
        """Leave a pod's container a tenth of a processor."""
        self._command("update", "--cpus=0.1", f"{name}-notebook")

    def execute(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a pod's container, as `kubectl exec`."""
        return self._run("exec", f"{name}-notebook", *words)

    def container(self, name: str) -> dict[str, Any]:
        """Return a pod's container as the runtime got it."""
        (found,) = json.loads(self._command("inspect", f"{name}-notebook"))
        config: dict[str, Any] = json.loads(Path(found["OCIConfigPath"]).read_text())
        return config

    def logs(self, name: str) -> str:
        """Return what a pod has printed."""
        done = self._run("logs", f"{name}-notebook")
        return done.stdout + done.stderr

    # The kubelet.

    def _play(self, pod: _Pod) -> None:
        name = pod.manifest["metadata"]["name"]
        path = self.folder / f"{name}.yaml"  # JSON is YAML
        path.write_text(json.dumps(_for_podman(pod.manifest)))
        profiles = ROOT / "jupyter_gpuckpt/profiles"
        seccomp = self.folder / "seccomp"
        seccomp.mkdir(exist_ok=True)
        # As the node filter's DaemonSet writes it.
        (seccomp / pod_spawner.SECCOMP_FILE).write_bytes((profiles / "seccomp.json").read_bytes())
        options = ["--network=none", f"--seccomp-profile-root={seccomp}"]
        if pod.manifest["spec"].get("hostUsers") is False:
            options.append(f"--userns={_OWN_USERS}")
        self._command("kube", "play", *options, path)
        infra = self._command("pod", "inspect", "--format={{.InfraContainerID}}", name)
        pid = self._command("inspect", "--format={{.State.Pid}}", infra.strip()).strip()
        link = f"gpuckpt-{pod.number}"
        self._ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", pid)
        self._ip("link", "set", link, "master", _BRIDGE, "up")
        inside = ["nsenter", "--net", f"--target={pid}", "ip"]
        address = f"{_NETWORK.format(pod.number)}/24"
        _checked([*inside, "address", "add", address, "dev", "eth0"])
        _checked([*inside, "link", "set", "eth0", "up"])
        self._change(pod, phase="Running")
        pod.played.set()
        code = int(self._command("wait", f"{name}-notebook"))
        self._change(pod, phase="Failed" if code else "Succeeded", exit_code=code)

    def _terminate(self, name: str, grace: int | None) -> Ended:
        pod = self._pods[name]
        pod.played.wait(300)
        self._change(pod, deleting=True)
        spec = pod.manifest["spec"]
        if grace is None:
            grace = spec["terminationGracePeriodSeconds"]
        began = time.monotonic()
        hook = None
        stop = (spec["containers"][0].get("lifecycle") or {}).get("preStop")
        if grace and stop and pod.phase == "Running":
            # Of a hook that takes too long only the rest of the pod's time is left.
            hook = self._hook(name, stop["exec"]["command"], grace)
        left = max(_LEAST_STOP_SECONDS, grace - (time.monotonic() - began)) if grace else 0
        self._command("stop", f"--time={int(left)}", f"{name}-notebook")
        (found,) = json.loads(self._command("inspect", f"{name}-notebook"))
        ended = Ended(name, time.monotonic() - began, found["State"]["ExitCode"], hook)
        # Its mounts may be in use for a moment by what was killed.
        wait_for(lambda: self._run("pod", "rm", "--force", "--time=0", name).returncode == 0)
        self.ended.append(ended)
        with self._changed:
            del self._pods[name]
            self._version += 1
            self._changed.notify_all()
        return ended

    def _hook(
        self, name: str, command: list[str], seconds: float
    ) -> subprocess.CompletedProcess[str] | None:
        try:
            return self._run("exec", f"{name}-notebook", *command, timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    # The API server.

    def _create(self, manifest: dict[str, Any]) -> bool:
        with self._changed:
            name = manifest["metadata"]["name"]
            if name in self._pods:
                return False
            self._numbers += 1
            pod = self._pods[name] = _Pod(manifest, self._numbers)
            self._version += 1
            self._changed.notify_all()
        threading.Thread(target=self._play, args=(pod,), daemon=True).start()
        return True

    def _change(self, pod: _Pod, **changes: object) -> None:
        with self._changed:
            for name, value in changes.items():
                setattr(pod, name, value)
            self._version += 1
            self._changed.notify_all()

    def _object(self, pod: _Pod) -> dict[str, Any]:
        ended = pod.exit_code is not None
        metadata = pod.manifest["metadata"] | {
            "namespace": "default",
            "uid": f"uid-{pod.number}",
            "resourceVersion": str(self._version),
            **({"deletionTimestamp": "2000-01-01T00:00:00Z"} if pod.deleting else {}),
        }
        status: dict[str, Any] = {"phase": pod.phase}
        if pod.phase != "Pending":
            state = {"terminated": {"exitCode": pod.exit_code}} if ended else {"running": {}}
            status["podIP"] = _NETWORK.format(pod.number)
            status["containerStatuses"] = [{"name": "notebook", "ready": not ended, "state": state}]
        return pod.manifest | {"metadata": metadata, "status": status}

    def _answer(
        self, method: str, path: list[str], query: dict[str, list[str]], body: Any
    ) -> tuple[int, object]:
        kind, *names = path
        name = names[0] if names else ""
        if kind == "persistentvolumeclaims":
            return self._claim(method, name, body)
        if method == "GET":
            return 200, self._list(kind, wait="watch" in query)
        if method == "POST":
            return (201 if self._create(body) else 409), body
        if method != "DELETE" or name not in self._pods:
            return 404, {}
        if not self._pods[name].deleting:
            arguments = (name, int(query["gracePeriodSeconds"][0]))
            threading.Thread(target=self._terminate, args=arguments, daemon=True).start()
        return 200, {}

    def _claim(self, method: str, name: str, body: Any) -> tuple[int, object]:
        if method == "POST":
            self._claims.add(body["metadata"]["name"])
            return 201, body
        return (200, {"metadata": {"name": name}}) if name in self._claims else (404, {})

    def _list(self, kind: str, *, wait: bool) -> object:
        with self._changed:
            if wait:
                # A watch says nothing: the list that kubespawner asks for next has what changed.
                self._changed.wait(_WATCH_SECONDS)
                return None
            items = [self._object(pod) for pod in self._pods.values()] if kind == "pods" else []
            return {"items": items, "metadata": {"resourceVersion": str(self._version)}}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            def _do(self) -> None:
                url = urlparse(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                # /api/v1/namespaces/NAMESPACE/KIND[/NAME]
                path = url.path.split("/")[5:]
                status, document = answer(self.command, path, parse_qs(url.query), body)
                content = b"" if document is None else json.dumps(document).encode()
                with contextlib.suppress(ConnectionError):
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            do_GET = do_POST = do_DELETE = _do  # noqa: N815 - the base class's names

            def log_message(self, *_: object) -> None:
                """Leave requests out of the output."""

        return Handler

    # Programs.

    def _make_user_ids(self) -> None:
        """Keep a mount namespace in which podman finds ids for user namespaces, without a change of this machine."""
        ids = self.folder / "subids"
        ids.write_text(_IDS)
        mounts = " && ".join(f"mount --bind {ids} /etc/{name}" for name in ("subuid", "subgid"))
        holder = subprocess.Popen(
            [
                "unshare",
                "--mount",
                "--propagation=slave",
                "sh",
                "-c",
                f"{mounts} && echo && exec cat",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdin
        assert holder.stdout
        assert holder.stdout.readline() == b"\n"
        self._prefix = ["nsenter", "--mount", f"--target={holder.pid}", "--wd=."]

        def close() -> None:
            with holder:
                holder.stdin.close()

        self._closers.append(close)

    def _make_configuration(self) -> None:
        own = Path(self._podman.environment["CONTAINERS_CONF"]).read_text()
        conf = self.folder / "containers.conf"
        conf.write_text(own.replace('runtime = "runc"', 'runtime = "pod"'))
        self._environment = self._podman.environment | {"CONTAINERS_CONF": str(conf)}

    def _command(self, *words: object) -> str:
        done = self._run(*words)
        assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    def _run(self, *words: object, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._prefix, *self._podman.command, *map(str, words)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def _ip(self, *words: str) -> None:
        _checked(["ip", *words])


def _for_podman(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's manifest with annotations for what podman does not read from its fields."""
    (container,) = manifest["spec"]["containers"]
    context = container["securityContext"]
    annotations = {**(manifest["metadata"].get("annotations") or {})}
    annotations[pod_runtime.ANNOTATION] = context.get("procMount", "Default")
    profile = context.get("seccompProfile") or {}
    if profile.get("type") == "Localhost":
        file = profile["localhostProfile"]
        annotations["seccomp.security.alpha.kubernetes.io/pod"] = f"localhost/{file}"
    # Ports are published by podman only in networks of its own.
    container = {name: value for name, value in container.items() if name != "ports"}
    return manifest | {
        "metadata": manifest["metadata"] | {"annotations": annotations},
        "spec": manifest["spec"] | {"containers": [container]},
    }


def _forward(listener: socket.socket, target: tuple[str, int]) -> None:
    """Forward each connection that a listener accepts to an address."""
    with listener:
        while True:
            try:
                there, _ = listener.accept()
            except OSError:  # shut down
                return
            threading.Thread(target=_join, args=(there, target), daemon=True).start()


def _join(there: socket.socket, target: tuple[str, int]) -> None:
    """Copy what either side of a connection sends, until both have ended."""
    with there, contextlib.suppress(OSError), socket.create_connection(target) as here:
        back = threading.Thread(target=_copy, args=(here, there), daemon=True)
        back.start()
        _copy(there, here)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
