"""A kernel suspended on one machine is resumed on another one that shares the disk.

A machine here is a set of namespaces with a host name, a boot id, processes and a view of the file system of its own. When its
server ends, everything in it ends, the daemon too.
"""

import ctypes.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

#: Arguments: host name, runtime directory, `target=source` pairs of what looks different there, --, the command.
BOOT = """
set -e
hostname "$1"
mount -t tmpfs tmpfs "$2"
cat /proc/sys/kernel/random/uuid > "$2/boot_id"
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
shift 2
while [ "$1" != -- ]; do mount --bind "${1#*=}" "${1%%=*}"; shift; done
shift
exec "$@"
"""
NAMESPACES = ["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.fixture
def machine(make_server, daemon_env):
    """Boot machines; each has a server of the same user with the same folders."""
    if os.geteuid() or subprocess.run(["unshare", *NAMESPACES, "true"], check=False).returncode:
        pytest.skip("namespaces cannot be made here")
    Path(daemon_env["JUPYTER_GPUCKPT_RUNTIME_DIR"]).mkdir()

    def boot(name, **different):
        server = make_server()
        server.prefix = [
            *("unshare", *NAMESPACES, "sh", "-c", BOOT, "sh"),
            *(name, daemon_env["JUPYTER_GPUCKPT_RUNTIME_DIR"]),
            *(f"{target}={source}" for target, source in different.items()),
            "--",
        ]
        return server.start()

    return boot


@pytest.fixture
def library(short_dir):
    """Return a library for a kernel to load."""
    found = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    name = ctypes.util.find_library("z")
    (path, *_) = (line.split()[-1] for line in found.splitlines() if line.split()[0] == name)
    return Path(shutil.copy(path, short_dir / "libmine.so"))


def processor_without_one_instruction(folder):
    """Its name, and a file like /proc/cpuinfo."""
    text = Path("/proc/cpuinfo").read_text()
    flags = next(line for line in text.splitlines() if line.startswith("flags")).split()
    lacking = next(flag for flag in ("avx2", "sse4_2", "ssse3", "sse2") if flag in flags)
    path = folder / "cpuinfo"
    path.write_text("\n".join(line.replace(f" {lacking} ", " ") for line in text.splitlines()))
    return lacking, path


def test_a_kernel_moves_to_another_machine_and_what_differs_is_named_first(
    machine, library, short_dir
):
    first = machine("first")
    page = first.open("notebook.ipynb")
    page.run(f"import ctypes, socket; mine = ctypes.CDLL('{library}'); x = 41")
    assert page.run("print(x, socket.gethostname())") == "41 first\n"
    first.stop(how=None)

    # Another version of a library, and an older processor.
    other = shutil.copy(library, short_dir / "libother.so")
    with open(other, "ab") as file:
        file.write(b"another version")
    lacking, cpuinfo = processor_without_one_instruction(short_dir)
    second = machine("second", **{str(library): other, "/proc/cpuinfo": str(cpuinfo)})
    assert second.kernel(page.kernel_id)["state"] == "suspended"
    operation = second.finish(second.begin("resume", page.kernel_id))
    assert (operation["state"], operation["error"]["code"]) == ("failed", "host_incompatible")
    assert (
        f"The file {library}, which the kernel uses, was replaced" in operation["error"]["message"]
    )
    assert f"lacks instructions that the saved one had: {lacking}." in operation["error"]["message"]
    assert "The snapshot is untouched." in operation["error"]["hint"]
    # Nothing was started: it was at the first stage, and the kernel is suspended as before.
    assert second.kernel(page.kernel_id)["state"] == "suspended"
    (snapshot,) = second.get("api/gpuckpt/snapshots")["snapshots"]
    assert snapshot["host_name"] == "first"
    second.stop(how=None)

    third = machine("third")
    (session,) = third.get("api/sessions")
    assert (session["id"], session["kernel"]["id"]) == (page.session_id, page.kernel_id)
    again = third.page(page.kernel_id)
    assert again.run("print(x + 1, socket.gethostname())") == "42 third\n"
    assert again.run("print(mine.zlibVersion() != 0)") == "True\n"


@pytest.mark.slow
def test_a_machine_that_dies_leaves_its_suspended_kernels_to_the_next(machine):
    first = machine("first")
    page = first.open("notebook.ipynb")
    page.run("x = 41")
    first.do("suspend", page.kernel_id)
    # No farewell: server and daemon are killed with everything else.
    first.kill()
    second = machine("second")
    assert second.kernel(page.kernel_id)["state"] == "suspended"
    assert second.page(page.kernel_id).run("print(x + 1)") == "42\n"
