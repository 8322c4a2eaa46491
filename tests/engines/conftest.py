"""A hub with the Docker spawner and the image of this checkout, both shared by all tests of a session, and a Slurm for each test."""

from __future__ import annotations

import pytest

from tests.conftest import environment, missing, only_for_root
from tests.engines.docker_hub import DockerHub
from tests.engines.podman_api import PodmanApi
from tests.engines.slurm_cluster import SlurmCluster
from tests.remote import servers


@pytest.fixture(scope="session")
def podman_api():
    """Return a podman that answers Docker's API; containers and volumes are its own."""
    only_for_root("the containers of these tests")
    if obstacle := PodmanApi.obstacle():
        missing("podman", obstacle)
    podman = PodmanApi()
    try:
        podman.start()
        yield podman
    finally:
        podman.end()


@pytest.fixture(scope="session")
def image(podman_api):
    """Build the image; return what else is given to `build_from`."""
    podman_api.build()
    return podman_api


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """Start a server of S3 for containers; return its address."""
    with servers.seaweedfs(tmp_path_factory.mktemp("weed")) as url:
        yield url


@pytest.fixture
def docker_hub(image, criu, short_dir):
    """Return a started hub whose users' servers are containers."""
    hub = DockerHub(short_dir, environment(criu, short_dir), image)
    try:
        yield hub.start()
    finally:
        hub.end()
        image.remove_all()


@pytest.fixture
def slurm(daemon_env, short_dir):
    """Return a Slurm with two idle nodes, whose jobs share a data directory."""
    only_for_root("the nodes of these tests")
    if obstacle := SlurmCluster.obstacle():
        missing("slurm", obstacle)
    cluster = SlurmCluster(short_dir, daemon_env)
    try:
        yield cluster.start()
    finally:
        cluster.end()
