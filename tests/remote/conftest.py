"""Buckets of every kind, empty for each test; all tests of a run share the servers behind them."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path

import msgspec
import pytest
from obstore.store import MemoryStore

from jupyter_gpuckpt.remote.buckets import Bucket, open_bucket
from jupyter_gpuckpt.remote.retries import Retries
from jupyter_gpuckpt.wire.remote_records import Capabilities, Remote
from tests.remote import servers, shared_servers


@pytest.fixture(autouse=True)
def _no_credentials_of_others(monkeypatch, tmp_path):
    """Nothing here may reach somebody's account."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))


@pytest.fixture(scope="session")
def seaweedfs(pytestconfig):
    return shared_servers.seaweedfs(pytestconfig)


@pytest.fixture(scope="session")
def azurite(pytestconfig):
    return shared_servers.azurite(pytestconfig)


@pytest.fixture(scope="session")
def rclone(tmp_path_factory):
    with servers.rclone(tmp_path_factory.mktemp("rclone")) as url:
        yield url


@pytest.fixture
def count_requests(monkeypatch):
    """Return a function that returns the number of requests to buckets so far."""
    names, lock, once = [], threading.Lock(), Bucket._once

    def counted(self, work, name):
        with lock:
            names.append(name)
        return once(self, work, name)

    monkeypatch.setattr(Bucket, "_once", counted)
    return lambda: len(names)


@pytest.fixture(params=["files", "seaweedfs", "azurite"])
def remote(request, tmp_path):
    """Return a remote of each kind that can be configured."""
    return _remote(request, tmp_path)


@pytest.fixture(params=["memory", "files", "seaweedfs", "azurite"])
def bucket(request, tmp_path):
    """Return an empty bucket of each kind."""
    if request.param == "memory":
        return memory_bucket()
    return opened(_remote(request, tmp_path), tmp_path)


def _remote(request, tmp_path):
    prefix = f"p{secrets.token_hex(6)}"
    if request.param == "files":
        return Remote(prefix, f"file://{tmp_path}/far%20away/{prefix}")
    url = request.getfixturevalue(request.param)
    if request.param == "azurite":
        variables = {"AZURE_STORAGE_ACCOUNT_KEY": servers.AZURE_KEY}
        made = servers.azure_remote(url, prefix)
    else:
        variables = servers.s3_variables()
        made = servers.s3_remote(url, prefix)
    for name, value in variables.items():
        request.getfixturevalue("monkeypatch").setenv(name, value)
    return made


def opened(remote: Remote, tmp_path: Path) -> Bucket:
    """Return the bucket of a remote, whose capabilities are those that its kind has."""
    found = Capabilities(True, True, True, True, True, True)
    remote = msgspec.structs.replace(remote, capabilities=found)
    return open_bucket(remote, retries=quick(), lock_dir=tmp_path / "locks")


def quick() -> Retries:
    """Retries without waits worth the name."""
    return Retries(first_seconds=0.01)


class CopyingStore(MemoryStore):
    """A store in memory of its own: obstore's keeps the very memory that it is given, and uploads use theirs again."""

    def put(self, path, file, **options):
        return super().put(path, bytes(file), **options)


def memory_bucket() -> Bucket:
    """Return a bucket in memory."""
    return Bucket(CopyingStore(), "memory", retries=quick())
