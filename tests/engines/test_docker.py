"""Users whose servers are containers find what they left: after any stop, a kill of the container, and an update of the image."""

import json

import pytest

from jupyter_gpuckpt.hub_records import STOP_MARGIN_SECONDS
from tests.conftest import wait_for
from tests.hub.test_stops import Two
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

    # With the hub.
    two.close_pages()
    hub.stop()
    hub.start()
    assert [user.model for user in two.users] == [None, None]
    two.find_again()
    assert hub.log_path.read_text().count("1 of 1 kernel suspended") == 4

    # By somebody who stops the container and knows nothing of the hub: the server suspends its kernels on SIGTERM.
    two.close_pages()
    hub.podman("stop", hub.container("alice"), hub.container("bob"))
    for user in two.users:
        user.wait_until_stopped()
    two.find_again(is_announced=False)


def check_container(hub, user):
    """Look at the container as podman has it: no right, our filter, and the time for a suspend."""
    (found,) = json.loads(hub.podman("inspect", hub.container(user)))
    assert found["EffectiveCaps"] in (None, [])
    assert found["Config"]["User"] == "1000"
    assert found["Config"]["StopTimeout"] == 60 + STOP_MARGIN_SECONDS
    options = found["HostConfig"]["SecurityOpt"]
    assert any("profiles/seccomp.json" in option for option in options), options


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
