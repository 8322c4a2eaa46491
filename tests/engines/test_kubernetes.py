"""Pods of ours really start, are stopped with their grace period, and have their kernels' state when they are started again.

`podman_cluster` stands in for a cluster, which cannot be had here.
"""

import json
from types import SimpleNamespace

import pytest
import yaml

from jupyter_gpuckpt.hub import pod_spawner
from tests.as_user import ROOT
from tests.conftest import environment, missing, wait_for
from tests.documented import block
from tests.engines.kube_hub import KubeHub
from tests.engines.podman_api import IMAGE
from tests.engines.podman_cluster import Cluster
from tests.hub.chart import document, documents
from tests.hub.test_stops import Two
from tests.ports import free_port
from tests.programs import NOISE
from tests.server.conftest import Server

pytestmark = pytest.mark.slow

#: Fills more memory than can be saved within seconds.
LARGE = f"{NOISE}; x = noise(1_000_000_000)"
#: The exit code of a container that was killed.
KILLED = 128 + 9


@pytest.fixture
def cluster(image, short_dir):
    """Start a cluster that has no pod."""
    if obstacle := Cluster.obstacle():
        missing("podman", obstacle)
    folder = short_dir / "cluster"
    folder.mkdir()
    made = Cluster(folder, image)
    try:
        yield made.start()
    finally:
        made.end()
        image.remove_all()


class PodServer(Server):
    """JupyterLab in a pod that has no hub, by a forwarded port."""

    def __init__(self, cluster, pod):
        self.cluster, self.pod, self.pages = cluster, pod, []
        self.name = pod["metadata"]["name"]

    def start(self):
        self.cluster.apply(self.pod)
        self.port = free_port()
        self.cluster.publish(self.name, self.port, 8888)
        listed = SimpleNamespace(token="")

        def answers():
            done = self.cluster.execute(self.name, "jupyter", "server", "list", "--json")
            if done.returncode or not done.stdout.strip():
                return False
            listed.token = json.loads(done.stdout.splitlines()[0])["token"]
            return True

        wait_for(answers, said=self.log)
        self.token = listed.token
        wait_for(lambda: self.request("GET", "api/status", ok=False).is_success, said=self.log)

    def log(self):
        return self.cluster.logs(self.name)


def pod_of(name):
    """Return the pod of a file, with the image that was built for the tests."""
    pod = document(name)
    pod["spec"]["containers"][0].update(image=IMAGE, imagePullPolicy="Never")
    return pod


def test_the_pods_of_the_filter_for_nodes_write_it(image, short_dir):
    config_map, daemon_set = documents("node-filter.yaml")
    spec = daemon_set["spec"]["template"]["spec"]
    (folder,) = [one["hostPath"] for one in spec["volumes"] if "hostPath" in one]
    folder["path"] = str(short_dir / "kubelet")
    for container in spec["initContainers"] + spec["containers"]:
        container["image"], container["imagePullPolicy"] = IMAGE, "Never"
        container["securityContext"] = {"runAsUser": 0}  # as in the image that is named by default
    # By default podman 4.3 removes a container of this kind when it has ended, and sometimes fails to.
    annotations = {"io.podman.annotations.init.container.type": "always"}
    metadata = {"name": "filter", "annotations": annotations}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    path = short_dir / "filter.yaml"
    path.write_text("\n---\n".join(map(json.dumps, (config_map, pod))))
    try:
        image("kube", "play", "--network=none", str(path))
        (written,) = (short_dir / "kubelet").iterdir()
        assert written.name == pod_spawner.SECCOMP_FILE
        ours = ROOT / "jupyter_gpuckpt/profiles/seccomp.json"
        assert json.loads(written.read_text()) == json.loads(ours.read_text())
        state = "{{.State.Status}}"
        assert image("inspect", f"--format={state}", "filter-wait").strip() == "running"
    finally:
        image.remove_all()


def as_documented(pod):
    """Give a pod the hook and the time of the example for reclaimed machines, for a pod with a volume."""
    spec = yaml.safe_load(block("reclaim.md", "yaml", "preStop"))["spec"]
    (container,) = spec.pop("containers")
    assert container.pop("name") == pod["spec"]["containers"][0]["name"]
    container["lifecycle"]["preStop"]["exec"]["command"].append("--disk-survives")
    pod["spec"].update(spec)
    pod["spec"]["containers"][0].update(container)


@pytest.mark.parametrize(
    ("privileges", "change"),
    [
        ("user-namespace", lambda pod: None),
        ("capabilities", lambda pod: None),
        ("user-namespace", as_documented),
    ],
    ids=["user-namespace", "capabilities", "documented-hook"],
)
def test_a_pod_suspends_its_kernels_when_it_is_evicted_and_the_next_one_has_them(
    cluster, privileges, change
):
    pod = pod_of("pod-capabilities.yaml" if privileges == "capabilities" else "pod.yaml")
    change(pod)
    server = PodServer(cluster, pod)
    server.start()
    check_container(cluster, server.name, privileges)
    page = server.open("work.ipynb")
    assert page.run("import os; x = 41; print(os.getpid())").strip().isdigit()
    page.close()
    ended = cluster.evict(server.name)
    assert ended.hook is not None
    assert ended.hook.returncode == 0, ended.hook
    assert ended.seconds < pod["spec"]["terminationGracePeriodSeconds"]
    assert ended.exit_code == 0, "the server was killed"

    server.start()
    (session,) = server.get("api/sessions")
    assert session["kernel"]["id"] == page.kernel_id
    assert session["kernel"]["execution_state"] == "suspended"
    assert server.page(page.kernel_id).run("x += 1; print(x)") == "42\n"


def test_a_grace_period_that_is_too_short_is_noticed(cluster):
    """Without this, the test above would prove nothing of the pod's period: a small kernel is suspended in any time."""
    pod = pod_of("pod.yaml")
    server = PodServer(cluster, pod)
    server.start()
    page = server.open("work.ipynb")
    page.run(LARGE)
    page.close()
    cluster.slow_down(server.name)
    ended = cluster.evict(server.name, grace=1)
    assert ended.hook is None
    assert ended.exit_code == KILLED
    server.start()
    states = {session["kernel"]["execution_state"] for session in server.get("api/sessions")}
    assert states <= {"lost"}


def check_container(cluster, name, privileges):
    """Look at what the runtime was told, and ask the doctor."""
    config = cluster.container(name)
    process, linux = config["process"], config["linux"]
    namespaces = {one["type"] for one in linux["namespaces"]}
    if privileges == "user-namespace":
        assert process["user"]["uid"] == 1000
        assert not process.get("capabilities", {}).get("bounding")
        assert process["noNewPrivileges"] is True
        assert linux["maskedPaths"] == []
        allowed = {name for rule in linux["seccomp"]["syscalls"] for name in rule["names"]}
        assert "vmsplice" in allowed
        assert "user" in namespaces
    else:
        assert process["user"]["uid"] == 0
        assert "CAP_SYS_ADMIN" in process["capabilities"]["bounding"]
        assert "/proc/kcore" in linux["maskedPaths"]
        assert "user" not in namespaces
    done = cluster.execute(name, "jupyter", "gpuckpt", "doctor")
    assert done.returncode == 0, done.stdout


def test_users_of_a_hub_find_what_they_left_however_their_pods_ended(cluster, criu, short_dir):
    hub = KubeHub(short_dir, environment(criu, short_dir), cluster)
    try:
        hub.start()
        two = Two(hub)
        alice, bob = two.users
        bob.begin_stop(hub.user("ada").token)
        alice.stop()
        bob.wait_until_stopped()
        # The hub suspends them first: nothing is left to do for the hook, and no container is killed.
        assert [ended.exit_code for ended in cluster.ended] == [0, 0], cluster.ended
        assert all(ended.hook.returncode == 0 for ended in cluster.ended), cluster.ended
        two.find_again()

        # By somebody who drains the node and knows nothing of the hub.
        two.close_pages()
        for name in ("jupyter-alice", "jupyter-bob"):
            ended = cluster.evict(name)
            assert (ended.exit_code, ended.hook.returncode) == (0, 0), ended
        for user in two.users:
            user.wait_until_stopped()
        two.find_again(is_announced=False)
        assert hub.log_path.read_text().count("1 of 1 kernel suspended") == 2
    finally:
        hub.end()
