"""Templates of an administrator: users start kernels from a data directory that they can only read."""

import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import uids
from tests.as_user import ROOT
from tests.conftest import end_everything_below, environment, folder_of_a_daemon, only_for_root
from tests.programs import python_module
from tests.users.user import User

from .conftest import PLANTED, Templates
from .memory import in_memory

RECIPE = """
import numpy as np
data = np.arange(10)
def total():
    return int(data.sum())
"""
USERS = 3
#: Other tests have the users before.
OFFSET = 10


def first_uid() -> int:
    return uids.first() + OFFSET


def state_of(folder: Path) -> dict[str, tuple]:
    """Return all that can be seen of every file, except when it was last read."""
    return {
        str(path): (
            (status := path.lstat()).st_mode,
            status.st_uid,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def shared(criu):
    """Yield the folder of an administrator who has made the templates `ready` and `other`."""
    only_for_root("other users' kernels")
    with folder_of_a_daemon() as folder:
        folder.chmod(0o755)
        templates = Templates(environment(criu, folder), folder)
        templates.create("ready", RECIPE)
        end_everything_below(folder)  # the administrator's daemon
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        yield folder


@pytest.fixture(scope="module")
def read_only(shared):
    """Yield a process in whose mount namespace the administrator's folder is read-only."""
    words = [*python_module("tests.templates.read_only"), str(shared)]
    with subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.stdin.close()


START = """
from tests.templates.user_kernels import UserKernel
kernel = UserKernel(folder, "ready", token, accepted)
result = kernel.facts()
"""


def started(stack, read_only, shared, number, accepted=("ready",)):
    """Start a user's kernel; return what it says of itself."""
    user = stack.enter_context(User(first_uid() + number, mounts_of=read_only))
    token = f"token-of-user-{number}"
    return user, user.run(START, folder=str(shared), token=token, accepted=list(accepted))


def test_users_start_an_administrators_template(shared, read_only):
    before, first = state_of(shared), first_uid()
    with ExitStack() as stack, ThreadPoolExecutor(USERS) as pool:
        both = list(pool.map(lambda n: started(stack, read_only, shared, n), range(USERS)))
        found = [one for _, one in both]
        for number, one in enumerate(found):
            uid = first + number
            assert one["why_no_copy"] == ""
            assert one["total"] == 45
            assert (one["uid"], one["gid"], one["owner"]) == (uid, uid, uid)
            assert one["cwd"] == one["home"]
            assert one["history"].startswith(one["home"])
            assert int(one["capabilities"][0], 16) == 0
            own = f"token-of-user-{number}".encode()
            assert in_memory(one["pid"], own)
            # Pieces, so that this process's own text is not what is found.
            others = [f"token-of-user-{other}".encode() for other in range(USERS)]
            for secret in (PLANTED.encode(), *(text for text in others if text != own)):
                assert not in_memory(one["pid"], secret), secret
                assert secret not in Path(f"/proc/{one['pid']}/environ").read_bytes()
        assert len({one["random"] for one in found}) == USERS
        for user, _ in both:
            user.run("kernel.close()")
    assert state_of(shared) == before


@pytest.mark.slow
def test_a_copy_of_a_shared_template_is_saved_and_resumed_in_the_users_own_store(shared, read_only):
    with ExitStack() as stack:
        user, _ = started(stack, read_only, shared, 0)
        user.run("""
        from jupyter_gpuckpt.sessions import Sessions
        kernel.run("data[0] = 100")
        with Sessions() as sessions:
            sessions.suspend(kernel.manager.kernel_id)
            sessions.resume(kernel.manager.kernel_id)
        """)
        assert user.run('result = kernel.run("import os; print(total(), os.getuid())")') == (
            f"145 {first_uid()}\n"
        )
        user.run("kernel.close()")


@pytest.mark.slow
def test_only_templates_that_the_list_names_are_copied(shared, read_only):
    with ExitStack() as stack:
        user, found = started(stack, read_only, shared, 0, accepted=())
        assert "There is no template ready" in found["why_no_copy"]
        assert found["total"] == 45
        user.run("kernel.close()")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("every user may write", "Every user may write to"),
        ("a chunk was altered", "is damaged"),
        ("a pipe", "is not a file"),
    ],
)
def test_a_folder_that_cannot_be_trusted_starts_an_ordinary_kernel(what, told, shared):
    packs = (shared / "data" / "store" / "packs").iterdir()
    pack = max(packs, key=lambda path: path.stat().st_size)
    content = pack.read_bytes()
    manifests = shared / "data" / "store" / "manifests"
    [manifest] = manifests.glob("*.manifest")
    try:
        if what == "every user may write":
            manifests.chmod(0o777)
        elif what == "a pipe":
            manifest.rename(manifest.with_suffix(".kept"))
            os.mkfifo(manifest, 0o644)
        else:
            pack.write_bytes(content[:1000] + bytes(1000) + content[2000:])
        with ExitStack() as stack:
            user, found = started(stack, 0, shared, 0)
            assert told in found["why_no_copy"]
            assert found["total"] == 45
            user.run("kernel.close()")
    finally:
        pack.write_bytes(content)
        manifests.chmod(0o755)
        if (kept := manifest.with_suffix(".kept")).exists():
            manifest.unlink()
            kept.rename(manifest)
