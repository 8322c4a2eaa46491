"""Users whose servers are containers find what they left: after any stop, a kill of the container, and an update of the image."""

import json

import pytest

from jupyter_gpuckpt.wire.hub_records import STOP_MARGIN_SECONDS
from tests.conftest import environment, wait_for
from tests.engines.docker_hub import DockerHub
from tests.hub.test_stops import Two, culling
from tests.programs import NOISE
from tests.remote import servers
from tests.server.test_time_travel import branch

pytestmark = pytest.mark.slow


def test_two_users_find_what_they_left_however_their_containers_were_stopped(docker_hub):
    hub = docker_hub
    two = Two(hub)
    alice, bob = two.users
    check_container(hub, "alice")

    # By an administrator, and by the user.
    bob.begin_stop(hub.user("ada").token)
    alice.stop()
    bob.wait_until_stopped()
    assert hub.podman("ps", "--all", "--quiet") == ""
    two.find_again()

    # By the culler.
    two.close_pages()
    with culling(hub):
        for user in two.users:
            user.wait_until_stopped()
    two.find_again()

    # With the hub.
    two.close_pages()
    hub.stop()
    hub.start()
    assert [user.model for user in two.users] == [None, None]
    two.find_again()
    assert hub.log_path.read_text().count("1 of 1 kernel suspended") == 6

    # By somebody who stops the container and knows nothing of the hub: the server suspends its kernels on SIGTERM.
    two.close_pages()
    hub.podman("stop", hub.container("alice"), hub.container("bob"))
    for user in two.users:
        user.wait_until_stopped()
    two.find_again(is_announced=False)


def test_a_stop_that_is_too_short_is_noticed(docker_hub):
    """Without this, the test above would prove nothing of the time of a stop: a small kernel is suspended in any time."""
    hub = docker_hub
    alice = hub.user("alice")
    alice.start()
    page = alice.open("work.ipynb")
    page.run(f"{NOISE}; x = noise(1_000_000_000)")
    alice.close_pages()
    hub.podman("update", "--cpus=0.1", hub.container("alice"))
    hub.podman("stop", "--time=1", hub.container("alice"))
    alice.wait_until_stopped()
    alice.start()
    states = {session["kernel"]["execution_state"] for session in alice.get("api/sessions")}
    assert states <= {"lost"}


def check_container(hub, user):
    """Look at the container as podman has it: no right, our filter, and the time for a suspend."""
    (found,) = json.loads(hub.podman("inspect", hub.container(user)))
    assert found["EffectiveCaps"] in (None, [])
    assert found["Config"]["User"] == "1000"
    assert found["Config"]["StopTimeout"] == 60 + STOP_MARGIN_SECONDS
    options = found["HostConfig"]["SecurityOpt"]
    assert any("profiles/seccomp.json" in option for option in options), options


S3 = """
c.Spawner.environment.update(%r)
"""


def test_snapshots_in_s3_outlive_a_container_and_its_volume(image, s3, criu, short_dir):
    hub = DockerHub(short_dir, environment(criu, short_dir), image, S3 % servers.s3_variables())

    def remote(*words, given=""):
        words = ("jupyter", "gpuckpt", "remote", *words)
        return hub.podman("exec", "--interactive", "jupyter-alice", *words, given=given)

    def setting_up(verb, *words, given=""):
        where = [f"--set=endpoint={s3}", "--set=allow_http=true"]
        return json.loads(remote(verb, "team", *words, *where, "--json", given=given))

    try:
        hub.start()
        alice = hub.user("alice")
        alice.start()
        line = setting_up("create", f"s3://{servers.BUCKET}/alice")["line"]
        page = alice.open("work.ipynb")
        page.run("x = 41")
        alice.do("suspend", page.kernel_id)
        (snapshot,) = alice.get("api/gpuckpt/snapshots")["snapshots"]
        remote("upload", "team", snapshot["snapshot_id"])
        alice.stop()
        # Another node has none of the files.
        image("volume", "rm", "gpuckpt-alice")
        alice.start()
        assert alice.get("api/gpuckpt/snapshots")["snapshots"] == []
        setting_up("add", given=line)
        remote("fetch", "team", snapshot["snapshot_id"])
        assert branch(alice, snapshot["snapshot_id"]).run("x += 1; print(x)") == "42\n"
        assert servers.SECRET_KEY not in hub.log_path.read_text()
    finally:
        hub.end()
        image.remove_all()


#: A kept container has the port of its first start in its command.
KEPT = """
ports = {}

def choose_once(spawner):
    name = spawner.user.name
    if name not in ports:
        choose_port(spawner)
        ports[name] = spawner.port
    spawner.port = ports[name]

c.Spawner.pre_spawn_hook = choose_once
c.DockerSpawner.remove = False
c.DockerSpawner.volumes = {}
"""


def test_a_container_that_is_kept_has_the_sessions_in_itself(image, criu, short_dir):
    """It is started again, with namespaces that may have the numbers of the former ones, and with the files of its daemons in /tmp."""
    hub = DockerHub(short_dir, environment(criu, short_dir), image, KEPT)
    try:
        hub.start()
        alice = hub.user("alice")
        alice.start()
        page = alice.open("work.ipynb")
        page.run("x = 0")
        for count in (1, 2):
            alice.stop()
            assert "1 suspended session is waiting: work.ipynb" in alice.start()
            again = alice.page(page.kernel_id)
            assert again.run("x += 1; print(x)") == f"{count}\n"
        alice.do("save", page.kernel_id)
        again.run("x = 100")
        alice.close_pages()
        hub.podman("kill", hub.container("alice"))
        wait_for(lambda: alice.model is None, said=hub.log)
        alice.start()
        # A new container's daemon, unless its namespaces have the numbers of the former ones, knows only the snapshots.
        sessions = alice.get("api/sessions")
        assert {one["kernel"]["execution_state"] for one in sessions} <= {"lost"}
        (latest, *_) = alice.get("api/gpuckpt/snapshots")["snapshots"]
        assert branch(alice, latest["snapshot_id"]).run("print(x)") == "2\n"
    finally:
        hub.end()
        image.remove_all()


def test_a_container_that_is_killed_leaves_the_last_snapshot(docker_hub):
    hub = docker_hub
    alice = hub.user("alice")
    alice.start()
    page = alice.open("work.ipynb")
    page.run("x = 1")
    alice.do("save", page.kernel_id)
    page.run("x = 2")
    alice.close_pages()
    hub.podman("kill", hub.container("alice"))
    wait_for(lambda: alice.model is None, said=hub.log)
    alice.start()
    (snapshot,) = alice.get("api/gpuckpt/snapshots")["snapshots"]
    assert snapshot["kernel_id"] == page.kernel_id
    assert branch(alice, snapshot["snapshot_id"]).run("print(x)") == "1\n"


def test_after_an_update_of_the_image_a_resume_is_refused_in_words_and_works_where_nothing_differs(
    docker_hub,
):
    hub = docker_hub
    alice = hub.user("alice")
    alice.start()
    page = alice.open("work.ipynb")
    page.run("import zmq; x = 41")
    alice.stop()
    # Another image with the same content: what is compared is content.
    hub.podman.build_from("RUN echo updated >/home/jovyan/.image-version")
    alice.start()
    again = alice.page(page.kernel_id)
    assert again.run("x += 1; print(x)") == "42\n"
    alice.stop()
    libraries = "/opt/jupyter/lib/python3*/site-packages/zmq/backend/cython/_zmq*.so"
    change = f"for library in {libraries}; do printf x >>$library; done"
    hub.podman.build_from(f"USER 0\nRUN {change}\nUSER 1000")
    alice.start()
    (session,) = alice.get("api/sessions")
    assert session["kernel"]["execution_state"] == "suspended"
    operation = alice.finish(alice.begin("resume", page.kernel_id))
    assert operation["state"] == "failed"
    assert "zmq/backend/cython/_zmq" in operation["error"]["message"], operation
    # It is still there, for the image that it was made in.
    (session,) = alice.get("api/sessions")
    assert session["kernel"]["execution_state"] == "suspended"
