"""A distribution in a folder of its own, in which programs run as its ordinary user: it has the kernel in common with this machine."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import NamedTuple

UID = 1000
HOME = Path("home/user")
#: Where a network has a certificate authority of its own, only this file knows it.
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
#: Root becomes the folder, by pivot_root: the kernel lets nobody make user namespaces in a chroot. The processes have a namespace of
#: pids of their own, so that none is left.
_ENTER = """
set -e
mount --bind "$1" "$1"
cd "$1"
for folder in dev sys; do mount --rbind /$folder $folder; done
mount -t proc proc proc
pivot_root . .
umount -l .
shift
cd "$HOME"
exec "$@"
"""


class Distribution(NamedTuple):
    """A release of a distribution: its name, where its packages are, and by which keys they are known."""

    suite: str
    mirror: str = "http://deb.debian.org/debian"
    components: str = "main"
    keys: tuple[str, str] | None = None

    def keyring(self, folder: Path) -> list[str]:
        """Return mmdebstrap's option for keys that the machine may not have: those of the distribution's own package."""
        if self.keys is None:
            return []
        path, digest = self.keys
        with urllib.request.urlopen(f"{self.mirror}/{path}", timeout=60) as answer:
            content = answer.read()
        assert hashlib.sha256(content).hexdigest() == digest
        package = folder / "keys.deb"
        package.write_bytes(content)
        subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
        (keyring,) = folder.glob("usr/share/keyrings/*-archive-keyring.gpg")
        return [f"--keyring={keyring}"]


class RootSystem:
    """The folder, while it is there."""

    def __init__(self, distribution: Distribution, folder: Path) -> None:
        self.folder = folder
        with tempfile.TemporaryDirectory() as keys:
            words = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase"]
            words += [
                "--include=apt,ca-certificates,make,python3-venv",
                *distribution.keyring(Path(keys)),
            ]
            user = f'chroot "$1" useradd --uid {UID} --create-home user'
            suite, source = distribution.suite, f"deb {distribution.mirror} {distribution.suite}"
            words += [f"--customize-hook={user}", suite, str(folder)]
            checked([*words, f"{source} {distribution.components}"])
        shutil.copy(_CERTIFICATES, folder / "etc/ssl/certs")

    def run(self, *words: str, root: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a program in the home of the system's user, and return the completed process with its output."""
        rights = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        certificates = [
            f"{name}=/{_CERTIFICATES.relative_to('/')}" for name in ("PIP_CERT", "SSL_CERT_FILE")
        ]
        environment = [
            "env",
            "-i",
            f"HOME=/{HOME}",
            "LANG=C.UTF-8",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            *certificates,
        ]
        enter = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "bash",
            "-c",
            _ENTER,
            "enter",
            str(self.folder),
        ]
        return subprocess.run(
            [*environment, *enter, *([] if root else rights), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip

    def put(self, source: Path) -> Path:
        """Copy a file or folder into the user's home; return its path there."""
        target = self.folder / HOME / source.name
        checked(["cp", "--recursive", "--no-preserve=ownership", str(source), str(target)])
        checked(["chown", "--recursive", f"{UID}:{UID}", str(target)])
        return Path("/", HOME, source.name)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder)


def checked(words: list[str]) -> str:
    """Run a program of this machine, which must succeed, and return what it printed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
