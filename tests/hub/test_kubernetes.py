"""The spawner for Kubernetes: the pod that it makes, what it refuses, and the files of deploy/kubernetes.

tests/engines starts such pods.
"""

import asyncio
import functools
import hashlib
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from jsonschema import ValidationError
from jupyterhub.app import JupyterHub
from kubernetes_asyncio.client import ApiClient
from kubernetes_asyncio.client.exceptions import ApiException
from kubespawner import KubeSpawner
from kubespawner import spawner as kubespawner_module
from traitlets.config import Config

from jupyter_gpuckpt.errors import ConfigurationError
from jupyter_gpuckpt.host import doctor_remedies
from jupyter_gpuckpt.hub import pod_spawner
from jupyter_gpuckpt.wire.hub_records import Waiting, WaitingKernel
from tests.documented import blocks
from tests.hub.chart import checked, document, documents, merged, settings_of
from tests.hub.refused_hubs import refusal_at_start

ROOT = Path(__file__).parent.parent.parent
#: 60 s for the suspends and 15 s for the server's end.
NEEDED = 75


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """Keep kubespawner from looking for a cluster."""
    monkeypatch.setattr(kubespawner_module, "load_config", lambda **_: None)


def in_loop(function):
    """Call it as a hub does: kubespawner wants an event loop."""

    async def call():
        return function()

    return asyncio.run(call())


def made(settings=None, **others):
    """Return a spawner with settings of KubeSpawner; `others`: those of the mixin and of ours."""
    config = Config({"KubeSpawner": settings or {}, "GpuCkptKubeSpawner": others})
    spawner_class = JupyterHub(spawner_class="gpuckpt-kubernetes").spawner_class
    return in_loop(lambda: spawner_class(_mock=True, config=config))


def pod_of(spawner):
    """Return the pod as the API server receives it."""

    async def manifest():
        async with ApiClient() as api:
            return api.sanitize_for_serialization(await spawner.get_pod_manifest())

    return asyncio.run(manifest())


def test_the_defaults_leave_time_and_kubespawner_itself_would_not():
    spawner = made()
    assert isinstance(spawner, KubeSpawner)
    spawner.check_configuration()
    assert spawner.delete_grace_period == spawner.stop_seconds == NEEDED
    # A pod in the way may take its own time, and the new pod's start takes time after that.
    assert spawner.start_timeout >= NEEDED + 60
    # What this class is for: the hub's stop would leave a pod one second.
    assert KubeSpawner.delete_grace_period.default_value == 1


TOO_SHORT = [
    {"delete_grace_period": 1},
    {"delete_grace_period": 74},
    {"start_timeout": 60},
    {"extra_pod_config": {"terminationGracePeriodSeconds": 30}},
    {"extra_pod_config": {"termination_grace_period_seconds": 30}},
]


@pytest.mark.parametrize("value", ["300", None])
def test_a_grace_period_that_is_no_number_is_refused(value):
    spawner = made({"extra_pod_config": {"terminationGracePeriodSeconds": value}})
    with pytest.raises(ConfigurationError, match="is not a number of seconds") as refused:
        spawner.check_configuration()
    assert f"{NEEDED} or more" in refused.value.hint


@pytest.mark.parametrize("settings", TOO_SHORT)
def test_a_grace_period_that_would_cut_a_suspend_short_is_refused_with_cause_and_hint(settings):
    spawner = made(settings)
    with pytest.raises(ConfigurationError) as refused:
        spawner.check_configuration()
    assert "would be killed while its kernels are being suspended" in refused.value.message
    assert f"c.KubeSpawner.{next(iter(settings))}" in refused.value.message
    assert f"{NEEDED} s or more" in refused.value.hint
    # A profile that a user chooses is only known at the start of the pod.
    with pytest.raises(ConfigurationError):
        pod_of(spawner)


def test_a_hook_that_shortens_the_grace_period_is_refused_at_the_start_of_the_pod():
    spawner = made()

    async def create():
        pod = await spawner.get_pod_manifest()
        pod.spec.termination_grace_period_seconds = 10
        await spawner._make_create_pod_request(pod, 3)

    with pytest.raises(ConfigurationError, match="modify_pod_hook"):
        asyncio.run(create())
    assert hasattr(KubeSpawner, "_make_create_pod_request"), "the check is never called"


def test_a_pod_in_the_way_of_a_new_one_gets_its_time(monkeypatch):
    """Such as one that is being evicted: its kernels may be suspended at this moment."""
    spawner = made()
    deleted, conflicts = [], [ApiException(status=409)]

    class Api:
        async def create_namespaced_pod(self, namespace, pod):
            if conflicts:
                raise conflicts.pop()

        async def delete_namespaced_pod(self, **options):
            deleted.append(options["grace_period_seconds"])

    async def nothing():
        """Watch no pods."""

    spawner.api, spawner._start_watching_pods = Api(), nothing
    # The one in the way is gone when it has been deleted.
    gone = {spawner._get_reflector_key("pods"): SimpleNamespace(pods={})}
    monkeypatch.setattr(type(spawner), "reflectors", gone)

    async def create():
        return await spawner._make_create_pod_request(await spawner.get_pod_manifest(), 3)

    assert asyncio.run(create()) is True
    assert deleted == [NEEDED]


def test_a_poll_that_finds_an_ended_container_is_no_stop_of_the_hub(monkeypatch):
    """What the server listed at its start need not wait any more: the hub announces nothing."""
    spawner = made()
    deleted = []

    class Api:
        async def delete_namespaced_pod(self, **options):
            deleted.append(options["grace_period_seconds"])
            pods_there.clear()

    async def nothing():
        """Watch no pods."""

    spawner.api, spawner._start_watching_pods = Api(), nothing
    ended = [{"name": "notebook", "state": {"terminated": {"exitCode": 7}}}]
    pods_there = {
        f"{spawner.namespace}/{spawner.pod_name}": {
            "status": {"phase": "Failed", "containerStatuses": ended}
        }
    }
    reflectors = {spawner._get_reflector_key("pods"): SimpleNamespace(pods=pods_there)}
    monkeypatch.setattr(type(spawner), "reflectors", reflectors)
    spawner._waiting = Waiting.of([WaitingKernel("a.ipynb")])
    spawner._started_again = True
    assert asyncio.run(spawner.poll()) == 7
    assert deleted == [0]
    assert not spawner._for_next_start().count


def test_a_pod_gets_the_least_that_kernels_need_and_time_to_suspend():
    pod = pod_of(made({"uid": 1000}))
    spec = pod["spec"]
    assert spec["terminationGracePeriodSeconds"] == NEEDED
    assert spec["hostUsers"] is False
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "runAsUser": 1000,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "procMount": "Unmasked",
        "seccompProfile": {"type": "Localhost", "localhostProfile": "gpuckpt-seccomp.json"},
        "appArmorProfile": {"type": "Unconfined"},
    }
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["jupyter", "gpuckpt", "notice", "--within=60s"]


def test_uploads_are_not_awaited_where_a_volume_keeps_the_snapshots(caplog):
    made().check_configuration()
    assert "the snapshots of a user are removed with the pod" in caplog.text
    caplog.clear()
    spawner = made(HOME_ON_CLAIM)
    spawner.check_configuration()
    assert is_told_that_disk_survives(spawner)
    assert not caplog.text


def is_told_that_disk_survives(spawner):
    hook = pod_of(spawner)["spec"]["containers"][0]["lifecycle"]["preStop"]
    return "--disk-survives" in hook["exec"]["command"]


def with_volume(path, **environment):
    """Return settings with a claim at a path, and memory in place of shared memory, as hubs often have it."""
    return {
        "environment": environment,
        "volumes": [
            {"name": "home", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
        "volume_mounts": [
            {"name": "home", "mountPath": path},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


HOME_ON_CLAIM = with_volume("/home/jovyan")
#: Volumes that are removed with the pod, or that are not where snapshots are.
NO_HOME = [
    {"storage_pvc_ensure": True},
    {**HOME_ON_CLAIM, "volumes": HOME_ON_CLAIM["volumes"][1:]},
    {**HOME_ON_CLAIM, "volumes": [{"name": "home", "emptyDir": {}}]},
    {**HOME_ON_CLAIM, "volumes": [{"name": "home", "ephemeral": {"volumeClaimTemplate": {}}}]},
    with_volume("/data"),
    with_volume("/home/jovyan/work"),
    with_volume("/home/jovyan", HOME="/home/ada"),
    with_volume("/home/jovyan", JUPYTER_GPUCKPT_DATA_DIR="/scratch"),
    with_volume("/home/jovyan", JUPYTER_GPUCKPT_STORE_DIR="/scratch"),
    {**HOME_ON_CLAIM, "environment": {"HOME": {"valueFrom": {"secretKeyRef": {"name": "s"}}}}},
    {**HOME_ON_CLAIM, "uid": 0},
]
A_HOME = [
    with_volume("/home"),
    with_volume("/home/jovyan/.local"),
    with_volume("/home/ada", HOME="/home/ada"),
    with_volume("/data", JUPYTER_GPUCKPT_DATA_DIR="/data/snapshots"),
    {
        "volumes": {"1": {"name": "home", "nfs": {"server": "s", "path": "/"}}},
        "volume_mounts": {"1": {"name": "home", "mount_path": "/home/jovyan"}},
    },
    {**with_volume("/root"), "uid": 0},
]


@pytest.mark.parametrize("settings", NO_HOME)
def test_a_volume_elsewhere_or_one_that_goes_with_the_pod_keeps_no_snapshots(settings, caplog):
    spawner = made(settings)
    spawner.check_configuration()
    assert "the snapshots of a user are removed with the pod" in caplog.text
    assert not is_told_that_disk_survives(spawner)


@pytest.mark.parametrize("settings", A_HOME)
def test_a_lasting_volume_above_the_snapshots_keeps_them(settings, caplog):
    spawner = made(settings)
    spawner.check_configuration()
    assert is_told_that_disk_survives(spawner)
    assert not caplog.text


def test_a_later_time_for_suspends_changes_the_times_that_depend_on_it_and_no_others():
    """A profile that a user chooses may change the time."""
    spawner = made()
    spawner.check_configuration()
    for seconds in (300, 60, 120):
        spawner.suspend_timeout = seconds
        spawner.check_configuration()
        assert spawner.delete_grace_period == seconds + 15
        assert pod_of(spawner)["spec"]["terminationGracePeriodSeconds"] == seconds + 15
    spawner = made({"delete_grace_period": NEEDED})
    spawner.check_configuration()
    spawner.suspend_timeout = 300
    with pytest.raises(ConfigurationError):
        spawner.check_configuration()


def test_capabilities_are_an_alternative_for_older_clusters():
    spec = pod_of(made(HOME_ON_CLAIM, privileges="capabilities"))["spec"]
    assert "hostUsers" not in spec
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert context["runAsUser"] == 0
    # Kubernetes itself gives root the home /root, which is not on the volume.
    assert {"name": "HOME", "value": "/home/jovyan"} in container["env"]
    assert "--disk-survives" in container["lifecycle"]["preStop"]["exec"]["command"]
    assert context["capabilities"] == {"add": ["SYS_ADMIN", "SYS_PTRACE", "SYS_TIME", "NET_ADMIN"]}
    assert context["allowPrivilegeEscalation"] is True
    assert "procMount" not in context
    root = pod_of(made(with_volume("/root"), privileges="capabilities"))["spec"]["containers"][0]
    assert "HOME" not in [one["name"] for one in root["env"]]
    assert "--disk-survives" in root["lifecycle"]["preStop"]["exec"]["command"]


def test_an_ordinary_user_with_capabilities_is_warned_of(caplog):
    """The capabilities are not effective then."""
    made({**HOME_ON_CLAIM, "uid": 1000}, privileges="capabilities").check_configuration()
    assert "c.KubeSpawner.uid is 1000" in caplog.text
    caplog.clear()
    for uid in (0, None):
        made({**HOME_ON_CLAIM, "uid": uid}, privileges="capabilities").check_configuration()
    made({**HOME_ON_CLAIM, "uid": 1000}).check_configuration()
    assert not caplog.text


def test_settings_of_the_configuration_stay_as_they_are():
    settings = {
        "delete_grace_period": 300,
        "extra_pod_config": {"terminationGracePeriodSeconds": 300, "hostUsers": True},
        "container_security_context": {"seccompProfile": {"type": "Unconfined"}},
        "lifecycle_hooks": {"preStop": {"exec": {"command": ["mine"]}}},
    }
    spawner = made(settings)
    spawner.check_configuration()
    assert spawner.delete_grace_period == 300
    spec = pod_of(spawner)["spec"]
    assert (spec["terminationGracePeriodSeconds"], spec["hostUsers"]) == (300, True)
    (container,) = spec["containers"]
    assert container["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
    assert container["securityContext"]["procMount"] == "Unmasked"
    assert container["lifecycle"] == {"preStop": {"exec": {"command": ["mine"]}}}
    for name in ("postStart", "post_start"):
        hooks = {name: {"exec": {"command": ["mine"]}}}
        lifecycle = pod_of(made({"lifecycle_hooks": hooks}))["spec"]["containers"][0]["lifecycle"]
        assert set(lifecycle) == {"postStart", "preStop"}
    own = {"lifecycle": {"preStop": {"exec": {"command": ["mine"]}}}}
    lifecycle = pod_of(made({"extra_container_config": own}))["spec"]["containers"][0]["lifecycle"]
    assert lifecycle["preStop"]["exec"]["command"] == ["mine"]
    privileged = pod_of(made({"privileged": True}))["spec"]["containers"][0]["securityContext"]
    assert privileged["privileged"] is True
    assert "procMount" not in privileged


def test_a_hub_with_too_little_time_ends_at_its_start_and_says_why(tmp_path, monkeypatch):
    cluster = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "none",
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
        "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "none", "user": {}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(cluster))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    said = refusal_at_start(
        tmp_path,
        'c.JupyterHub.spawner_class = "gpuckpt-kubernetes"\n'
        "c.KubeSpawner.delete_grace_period = 1\n",
    )
    assert "With c.KubeSpawner.delete_grace_period = 1 s a server would be killed" in said


@pytest.mark.parametrize(("privileges", "user"), [("user-namespace", 1000), ("capabilities", 0)])
def test_values_for_the_chart_lead_to_the_pod_of_the_folder(caplog, privileges, user):
    values, alone = document("hub-values.yaml"), document("pod.yaml")
    if privileges == "capabilities":
        values = merged(values, document("hub-values-capabilities.yaml"))
        alone = document("pod-capabilities.yaml")
    config = Config(settings_of(values))
    hub = JupyterHub(config=config)
    assert hub.spawner_class.__name__ == "GpuCkptKubeSpawner"
    spawner = in_loop(lambda: hub.spawner_class(_mock=True, config=config))
    spawner.check_configuration()
    assert not caplog.text
    spawned = pod_of(spawner)["spec"]
    for name in ("terminationGracePeriodSeconds", "hostUsers", "securityContext"):
        assert spawned.get(name) == alone["spec"].get(name), name
    (theirs,), (ours,) = spawned["containers"], alone["spec"]["containers"]
    for name in ("lifecycle", "securityContext"):
        assert theirs[name] == ours[name], name
    assert theirs["image"] == f"{ours['image']}:latest"
    assert theirs["securityContext"]["runAsUser"] == user
    assert all(variable in theirs["env"] for variable in ours.get("env", []))
    assert spawned["terminationGracePeriodSeconds"] == NEEDED


PAGE = "zero-to-jupyterhub.md"
#: What is given to helm together: a file, and files or examples of the documentation after it.
GIVEN = {
    "hub-values.yaml": [],
    "hub-values-capabilities.yaml": [document("hub-values-capabilities.yaml")],
    **{f"{PAGE} {n}": [yaml.safe_load(code)] for n, code in enumerate(blocks(PAGE, "yaml"))},
}


def test_all_examples_of_values_are_tried():
    assert len(GIVEN) >= 7


@pytest.mark.parametrize("more", GIVEN.values(), ids=GIVEN)
def test_values_are_those_that_the_chart_knows(more, caplog):
    whole = checked(functools.reduce(merged, more, document("hub-values.yaml")))
    config = Config(settings_of(whole))
    for code in whole["hub"]["extraConfig"].values():
        exec(code, {"c": config})
    hub = JupyterHub(config=config)
    spawner = in_loop(lambda: hub.spawner_class(_mock=True, config=config))
    spawner.check_all()
    # The values of the spawner's time are used, and leave enough of it.
    assert (
        spawner.suspend_timeout == whole["hub"]["config"]["GpuCkptSpawnerMixin"]["suspend_timeout"]
    )
    assert not caplog.text


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"singleuser": {"imgae": {"name": "jupyter-gpuckpt"}}}, "imgae"),
        ({"hub": {"extraConfg": {}}}, "extraConfg"),
        ({"cul": {"timeout": 3600}}, "cul"),
        ({"cull": {"timeout": "1h"}}, "1h"),
    ],
)
def test_the_chart_refuses_a_value_with_a_wrong_name_or_kind(values, name):
    with pytest.raises(ValidationError, match=f"'{name}'"):
        checked(merged(document("hub-values.yaml"), values))


def test_the_filter_for_nodes_is_the_one_that_pods_name():
    config_map, daemon_set = documents("node-filter.yaml")
    ((name, text),) = config_map["data"].items()
    assert name == pod_spawner.SECCOMP_FILE == doctor_remedies.SECCOMP_FILE
    ours = json.loads((ROOT / "jupyter_gpuckpt/profiles/seccomp.json").read_text())
    assert json.loads(text) == ours
    template = daemon_set["spec"]["template"]
    (copy,) = template["spec"]["initContainers"]
    assert name in copy["command"][-1]
    # A DaemonSet whose template is unchanged keeps its pods, and they have written the former filter.
    digest = hashlib.sha256(text.strip().encode()).hexdigest()
    assert template["metadata"]["annotations"] == {"jupyter-gpuckpt/filter": digest}


def test_the_command_of_the_filter_for_nodes_copies_it(tmp_path):
    """Run it with other folders in place of the container's."""
    _, daemon_set = documents("node-filter.yaml")
    (copy,) = daemon_set["spec"]["template"]["spec"]["initContainers"]
    script = copy["command"][-1]
    for mount in copy["volumeMounts"]:
        folder = tmp_path / mount["name"]
        folder.mkdir()
        script = script.replace(mount["mountPath"] + "/", f"{folder}/")
    (tmp_path / "filter" / pod_spawner.SECCOMP_FILE).write_text("{}")
    subprocess.run(["sh", "-c", script], check=True, timeout=60)
    assert [path.name for path in (tmp_path / "kubelet").iterdir()] == [pod_spawner.SECCOMP_FILE]


def test_user_of_the_check_at_start_is_enough_for_the_class():
    """hub/start_check.py knows no user yet."""
    user = SimpleNamespace(name="", id=0)
    spawner_class = JupyterHub(spawner_class="gpuckpt-kubernetes").spawner_class
    in_loop(lambda: spawner_class(user=user).check_configuration())
