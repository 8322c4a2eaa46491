"""The ready spawners: what each tells its engine, which configurations it refuses, and that the hub refuses them at its start."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from batchspawner import JobStatus, SlurmSpawner
from docker.errors import NotFound
from jupyterhub.app import JupyterHub
from jupyterhub.spawner import LocalProcessSpawner
from systemdspawner import SystemdSpawner
from tornado.netutil import bind_sockets
from traitlets.config import Config

from jupyter_gpuckpt import hub as hub_package
from jupyter_gpuckpt.errors import ConfigurationError
from jupyter_gpuckpt.hub import GpuCkptSpawnerMixin, start_check, with_suspend
from jupyter_gpuckpt.hub.systemd import seconds_of
from tests.hub.refused_hubs import refusal_at_start

#: 60 s for the suspends and 15 s for the server's end.
NEEDED = 75

READY = ["docker", "localprocess", "slurm", "systemd"]


def ready(name):
    """Return the class that a hub gets for a name."""
    return JupyterHub(spawner_class=f"gpuckpt-{name}").spawner_class


def made(name, section="", **settings):
    config = Config()
    config[section or "Spawner"].update(settings)
    return ready(name)(config=config, user=SimpleNamespace(name="ada", id=7))


@pytest.mark.parametrize("name", READY)
def test_a_name_is_enough_for_the_hub_and_the_defaults_leave_time(name):
    spawner = made(name)
    assert isinstance(spawner, GpuCkptSpawnerMixin)
    assert spawner.stop_seconds == NEEDED
    spawner.check_all()


def test_no_engine_is_imported_before_its_spawner_is_asked_for():
    program = (
        "import sys, jupyter_gpuckpt.hub\n"
        "print([n for n in ('docker', 'dockerspawner', 'batchspawner', 'systemdspawner') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "[]\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="GpuCkptNomadSpawner"):
        hub_package.GpuCkptNomadSpawner  # noqa: B018 - asked for


TOO_SHORT = [
    ("localprocess", "LocalProcessSpawner", {"interrupt_timeout": 30, "term_timeout": 30}),
    ("docker", "DockerSpawner", {"extra_create_kwargs": {"stop_timeout": 10}}),
    ("slurm", "SlurmSpawner", {"req_options": "--requeue --signal=B:USR1@30"}),
    ("slurm", "SlurmSpawner", {"req_options": "--signal=TERM"}),
    ("systemd", "SystemdSpawner", {"unit_extra_properties": {"TimeoutStopSec": "1min 10s"}}),
    ("systemd", "SystemdSpawner", {"unit_extra_properties": {"TimeoutSec": "20"}}),
    ("systemd", "SystemdSpawner", {"unit_extra_properties": {"TimeoutStopSec": 30}}),
]


@pytest.mark.parametrize(("name", "section", "settings"), TOO_SHORT)
def test_a_configuration_that_would_cut_a_suspend_short_is_refused_with_cause_and_hint(
    name, section, settings
):
    with pytest.raises(ConfigurationError) as refused:
        made(name, section, **settings).check_configuration()
    assert "would be killed while its kernels are being suspended" in refused.value.message
    assert f"c.{section}." in refused.value.message
    assert "75 s or more" in refused.value.hint


def test_a_shorter_suspend_needs_less_time():
    config = Config()
    config.DockerSpawner.extra_create_kwargs = {"stop_timeout": 20}
    config.GpuCkptSpawnerMixin.suspend_timeout = 4.5
    ready("docker")(config=config).check_configuration()


ENOUGH = [
    ("localprocess", "LocalProcessSpawner", {"interrupt_timeout": 45, "term_timeout": 30}),
    ("docker", "DockerSpawner", {"extra_create_kwargs": {"stop_timeout": 300}}),
    ("slurm", "SlurmSpawner", {"req_options": "--signal=R:TERM@120"}),
    ("systemd", "SystemdSpawner", {"unit_extra_properties": {"TimeoutStopSec": "2min"}}),
    ("systemd", "SystemdSpawner", {"unit_extra_properties": {"TimeoutStopSec": "infinity"}}),
    ("systemd", "SystemdSpawner", {"unit_extra_properties": {"TimeoutStopSec": "0"}}),
    ("systemd", "SystemdSpawner", {"unit_extra_properties": {"TimeoutStopSec": 300}}),
    ("systemd", "SystemdSpawner", {"unit_extra_properties": {"TimeoutStopSec": "1M"}}),
]


@pytest.mark.parametrize(("name", "section", "settings"), ENOUGH)
def test_more_time_is_left_as_it_was_configured(name, section, settings):
    spawner = made(name, section, **settings)
    spawner.check_all()
    for key, value in settings.items():
        assert getattr(spawner, key) == value


@pytest.mark.parametrize(
    ("span", "seconds"),
    [("90", 90), ("1min 30s", 90), ("1.5m", 90), ("500ms", 0.5), ("2h", 7200), ("1day", 86400)],
)
def test_time_spans_of_systemd_are_understood(span, seconds):
    assert seconds_of(span) == seconds


def test_a_class_that_needs_a_real_user_is_checked_at_the_start_of_servers_instead(caplog):
    class Named(ready("docker")):
        def __init__(self, **options):
            super().__init__(**options)
            self.image = self.user.settings["image"]

    hub = JupyterHub(spawner_class=Named, log=logging.getLogger("a hub's"))
    start_check._check(GpuCkptSpawnerMixin, {"owner": hub})
    assert "cannot be checked before a user starts a server" in caplog.text
    spawner = Named(user=SimpleNamespace(name="ada", id=7, settings={"image": "lab"}))
    spawner.extra_create_kwargs = {"stop_timeout": 10}
    with pytest.raises(ConfigurationError):
        asyncio.run(spawner.start())


def test_a_spawner_refuses_to_start_a_server_with_what_a_hook_made_too_short():
    spawner = made("docker")
    spawner.extra_create_kwargs = {"stop_timeout": 10}
    with pytest.raises(ConfigurationError):
        asyncio.run(spawner.start())


def test_docker_may_remove_snapshots_with_the_container_and_the_hub_is_told(caplog):
    made("docker", "DockerSpawner", remove=True).check_configuration()
    assert "the snapshots of a user are removed with the container" in caplog.text
    caplog.clear()
    volumes = {"home-{username}": "/home/jovyan"}
    made("docker", "DockerSpawner", remove=True, volumes=volumes).check_configuration()
    assert not caplog.text


@pytest.mark.parametrize("name", ["gpuckpt-docker", "docker"])
def test_a_clean_start_is_not_offered_for_containers_that_are_kept(name):
    """A kept container has the environment of its first start, so a later choice of its user would not reach it."""
    config = Config({"Spawner": {"offer_clean_start": True}})
    spawner = with_suspend(name)(config=config, user=SimpleNamespace(name="ada", id=7))
    with pytest.raises(ConfigurationError) as refused:
        spawner.check_all()
    assert "offer_clean_start" in refused.value.message
    assert "c.DockerSpawner.remove = True" in refused.value.hint
    spawner.remove = True
    spawner.check_all()


class Sent(ready("docker")):
    """A Docker spawner that returns what it would tell docker-py; tests/engines has the real one."""

    def _docker(self, method, *args, **kwargs):
        return kwargs

    def create(self, *, is_podman, is_root, host=None, **options):
        self._is_podman, self._is_root = is_podman, is_root

        async def create():
            return await self.docker("create_container", host_config=host or {}, **options)

        return asyncio.run(create())


def test_docker_gets_a_container_the_least_that_kernels_need():
    options = Sent().create(is_podman=False, is_root=False)
    host = options["host_config"]
    seccomp, *others = host["SecurityOpt"]
    assert "vmsplice" in json.loads(seccomp.removeprefix("seccomp="))["syscalls"][0]["names"]
    assert others == ["apparmor=unconfined", "no-new-privileges"]
    assert (host["MaskedPaths"], host["ReadonlyPaths"], host["CapDrop"]) == ([], [], ["ALL"])
    assert options["stop_timeout"] == NEEDED


def test_podman_reads_the_filter_itself_and_has_a_word_of_its_own_for_all_of_proc():
    host = Sent().create(is_podman=True, is_root=False)["host_config"]
    seccomp, *others = host["SecurityOpt"]
    assert json.loads(Path(seccomp.removeprefix("seccomp=")).read_text())["syscalls"]
    assert others == ["unmask=ALL", "no-new-privileges"]
    assert "MaskedPaths" not in host


def test_an_image_of_root_keeps_the_capability_to_map_its_own_id():
    host = Sent().create(is_podman=False, is_root=True)["host_config"]
    assert "CapDrop" not in host
    assert "no-new-privileges" not in host["SecurityOpt"]
    host = Sent().create(is_podman=False, is_root=True, user=1001)["host_config"]
    assert host["CapDrop"] == ["ALL"]
    for user in ("root", "root:users", "0:0", 0):
        host = Sent().create(is_podman=False, is_root=False, user=user)["host_config"]
        assert "CapDrop" not in host, user


def test_options_of_the_configuration_stay_as_they_are():
    own = {"SecurityOpt": ["seccomp=unconfined", "apparmor:mine"], "CapDrop": ["NET_RAW"]}
    host = Sent().create(is_podman=False, is_root=False, host=own)["host_config"]
    assert host["SecurityOpt"] == ["seccomp=unconfined", "apparmor:mine", "no-new-privileges"]
    assert host["CapDrop"] == ["NET_RAW"]
    privileged = Sent().create(is_podman=True, is_root=True, host={"Privileged": True})
    assert privileged["host_config"] == {"Privileged": True}


def test_a_stop_timeout_that_is_chosen_as_late_as_the_container_is_refused_as_well():
    with pytest.raises(ConfigurationError):
        Sent().create(is_podman=False, is_root=False, stop_timeout=10)


@pytest.mark.parametrize(("own", "waited"), [(None, NEEDED), (10, NEEDED), (300, 300)])
def test_a_stop_waits_as_long_as_the_container_may_take(own, waited):
    told = []

    class Stopped(Sent):
        def _docker(self, method, *args, **kwargs):
            told.append((method, args, kwargs))
            return {"Config": {"StopTimeout": own}}

    spawner = Stopped()
    spawner.object_id = "17"
    asyncio.run(spawner.stop_object())
    assert told[-1] == ("stop", ("17",), {"timeout": waited})


def test_a_container_that_is_gone_is_no_failure_of_a_stop():
    class Gone(Sent):
        def _docker(self, method, *args, **kwargs):
            response = requests.Response()
            response.status_code = 404
            raise NotFound("no such container", response)

    spawner = Gone()
    spawner.object_id = "17"
    asyncio.run(spawner.stop_object())
    assert spawner.object_id == "17"


def test_what_suspends_already_is_not_wrapped_again():
    assert with_suspend("gpuckpt-docker") is ready("docker")


def test_systemd_is_told_the_time_and_to_signal_the_server_alone(monkeypatch):
    async def started(self):  # systemd does not run where these tests do
        return self.unit_extra_properties

    monkeypatch.setattr(SystemdSpawner, "start", started)
    spawner = made("systemd", "SystemdSpawner", unit_extra_properties={"Nice": "5"})
    expected = {"KillMode": "mixed", "TimeoutStopSec": str(NEEDED), "Nice": "5"}
    assert asyncio.run(spawner.start()) == expected
    spawner = made("systemd", "SystemdSpawner", unit_extra_properties={"TimeoutSec": "5min"})
    assert asyncio.run(spawner.start()) == {"KillMode": "mixed", "TimeoutSec": "5min"}


def options_of_job(spawner):
    """Return the last options of Slurm in the batch script, which are ours."""
    variables = {"options": spawner.req_options, "srun": "srun", "cmd": "jupyterhub-singleuser"}
    script = asyncio.run(spawner._get_batch_script(**variables))
    assert "srun jupyterhub-singleuser" in script
    assert hasattr(SlurmSpawner, "_get_batch_script"), "the options are never added"
    return [line for line in script.splitlines() if line.startswith("#SBATCH ")][-1]


def test_slurm_signals_a_job_before_its_time_limit():
    spawner = made("slurm", "SlurmSpawner", req_options="--requeue")
    assert options_of_job(spawner) == f"#SBATCH --requeue --signal=TERM@{NEEDED}"
    # A profile may have another time.
    for seconds in (300, 60):
        spawner.suspend_timeout = seconds
        spawner.check_all()
        assert options_of_job(spawner) == f"#SBATCH --requeue --signal=TERM@{seconds + 15}"
    spawner = made("slurm", "SlurmSpawner", req_options="--signal=B:USR1@90")
    assert options_of_job(spawner) == "#SBATCH --signal=B:USR1@90 --no-requeue"
    spawner.suspend_timeout = 300
    with pytest.raises(ConfigurationError):
        options_of_job(spawner)


def test_a_job_without_a_step_to_signal_is_warned_of(caplog):
    made("slurm").check_configuration()
    own = "#!/bin/sh\n{% if srun %}{{srun}} {% endif %}{{cmd}}\n"
    stepped = own.replace("{{cmd}}", "srun --mpi=none {{cmd}}")
    made("slurm", "SlurmSpawner", req_srun="", batch_script=stepped).check_configuration()
    assert not caplog.records
    for settings in ({"req_srun": ""}, {"req_srun": "", "batch_script": own}):
        caplog.clear()
        made("slurm", "SlurmSpawner", **settings).check_configuration()
        assert "c.SlurmSpawner.req_srun is empty" in caplog.text


def test_no_other_program_gets_the_port_of_a_local_server_before_it_listens(monkeypatch):
    async def start(spawner):
        # Who looks for a free port does not get it, and who asks for it is refused; a server, which sets SO_REUSEADDR, is not.
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", spawner.port))
        for listening in bind_sockets(spawner.port, "127.0.0.1"):
            listening.close()
        return "127.0.0.1", spawner.port

    async def stop(spawner, now=False):
        spawner.stopped = True

    monkeypatch.setattr(LocalProcessSpawner, "start", start)
    monkeypatch.setattr(LocalProcessSpawner, "stop", stop)
    spawner = made("localprocess")

    async def run():
        _, first = await spawner.start()
        await spawner.stop()
        with socket.socket() as other:
            other.bind(("127.0.0.1", first))
            other.listen()
            # It is chosen anew, because another program may have it by now.
            _, second = await spawner.start()
        assert second != first
        await spawner.stop()

    asyncio.run(run())


def test_a_port_of_the_configuration_is_not_replaced(monkeypatch):
    async def start(spawner):
        return "127.0.0.1", spawner.port

    monkeypatch.setattr(LocalProcessSpawner, "start", start)
    spawner = made("localprocess", "LocalProcessSpawner", port=4711)
    assert asyncio.run(spawner.start()) == ("127.0.0.1", 4711)


class Proxy:
    """A hub's proxy that records the addresses of users' servers."""

    def __init__(self):
        self.added = []

    async def add_user(self, user, server_name=""):
        server = user.spawners[server_name].server
        self.added.append((server.ip, server.port))


def running(status, proxy):
    """Return the spawner of a server on the node n1, port 1000, with what Slurm says of its job."""

    class Job(ready("slurm")):
        pending = None

        async def run_command(self, *given, **options):
            return status[0]

    user = SimpleNamespace(name="ada", id=7, settings={"proxy": proxy})
    spawner = Job(user=user)
    spawner.server, spawner.req_homedir = SimpleNamespace(ip="n1", port=1000), "/"
    spawner.req_keepvars = ""
    user.spawners = {"": spawner}
    spawner.db = SimpleNamespace(commit=lambda: None)
    spawner.job_id, spawner.port = "17", 1000
    return spawner


def test_hub_and_proxy_follow_a_job_to_another_node_and_port():
    async def run():
        proxy, status = Proxy(), ["RUNNING n1"]
        spawner = running(status, proxy)
        assert await spawner.poll() is None
        # Slurm has started it again, and the server has not reported its port yet: another program may have the former one there.
        status[0] = "RUNNING n2"
        assert await spawner.poll() is None
        assert proxy.added == []
        status[0] = "PENDING n1"
        spawner.port = 2000
        assert await spawner.poll() is None
        assert proxy.added == []
        status[0] = "RUNNING n2"
        for _ in range(2):
            assert await spawner.poll() is None
        assert proxy.added == [("n2", 2000)]
        # While the hub starts or stops it, it knows better.
        status[0], spawner.pending = "RUNNING n3", "spawn"
        assert await spawner.poll() is None
        assert proxy.added == [("n2", 2000)]
        # The port of a server that another hub has started.
        spawner.pending, spawner.port = None, 0
        assert await spawner.poll() is None
        assert proxy.added == [("n2", 2000)]

    asyncio.run(run())


def test_a_proxy_that_fails_ends_no_poll(caplog):
    spawner = running(["RUNNING n2"], proxy=None)
    spawner.port = 2000
    assert asyncio.run(spawner.poll()) is None
    assert "the job's new address is not known" in caplog.text


def test_the_stop_of_a_job_waits_for_its_end(monkeypatch):
    """batchspawner itself gives up after ten questions, while Slurm may wait longer than that for a job to end."""
    asked = []

    async def sleep(_):
        """Pass no time."""

    class Job(ready("slurm")):
        suspend_before_stop = False

        async def cancel_batch_job(self):
            assert self.job_id == "17"

        async def query_job_status(self):
            asked.append(None)
            return JobStatus.RUNNING if len(asked) < 30 else JobStatus.NOTFOUND

    monkeypatch.setattr(asyncio, "sleep", sleep)
    spawner = Job(user=SimpleNamespace(name="ada", id=7))
    spawner.job_id = "17"
    asyncio.run(spawner.stop())
    assert len(asked) == 30
    asked.clear()
    asyncio.run(spawner.stop(now=True))
    assert not asked


# A class of the hub's own is derived from ours, so that the check of one is that of the other.
@pytest.mark.parametrize(
    "chosen",
    [
        '"gpuckpt-docker"',
        pytest.param("GpuCkptDockerSpawner", marks=pytest.mark.slow),
        pytest.param("Mine", marks=pytest.mark.slow),
    ],
)
def test_a_hub_with_too_little_time_ends_at_its_start_and_says_why(tmp_path, chosen):
    said = refusal_at_start(
        tmp_path,
        "from jupyter_gpuckpt.hub import GpuCkptDockerSpawner\n"
        "class Mine(GpuCkptDockerSpawner):\n    pass\n"
        f"c.JupyterHub.spawner_class = {chosen}\n"
        'c.DockerSpawner.extra_create_kwargs = {"stop_timeout": 10}\n',
    )
    assert 'extra_create_kwargs["stop_timeout"] = 10 s' in said
    assert "lower suspend_timeout" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_hub_with_a_class_of_its_own_refuses_clean_starts_of_kept_containers_at_its_start(
    tmp_path,
):
    said = refusal_at_start(
        tmp_path,
        "from jupyter_gpuckpt.hub import with_suspend\n"
        'c.JupyterHub.spawner_class = with_suspend("docker")\n'
        "c.GpuCkptSpawnerMixin.offer_clean_start = True\n",
    )
    assert "does not work with c.DockerSpawner.remove = False" in said
    assert "Traceback" not in said
