"""What containers of the tests see of this machine: its files, with Python, CRIU and the checkout readable by every user."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from jupyter_gpuckpt.host import criu_program, doctor_remedies
from jupyter_gpuckpt.wire import decoding
from tests.containers.inside import Result

ROOT = Path(__file__).parent.parent.parent
PROFILE = ROOT / "jupyter_gpuckpt/profiles/seccomp.json"
#: What runs in a container.
INSIDE = [sys.executable, "-m", "tests.containers.inside"]
#: Longer than any container runs.
SECONDS = 150
#: What a limit is set to that is higher here; it would be raised otherwise, for which rights may be missing.
_MAX_LIMIT, _UNLIMITED = 20000, 1 << 64


def write_profile(folder: Path) -> None:
    """Write the filter as the documentation tells users to."""
    (folder / doctor_remedies.SECCOMP_FILE).write_bytes(PROFILE.read_bytes())


def limits() -> list[str]:
    """Return the limits of a container, as docker and podman take them."""
    kinds = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    found = {
        name: min(resource.getrlimit(kind)[1] % _UNLIMITED, _MAX_LIMIT)
        for name, kind in kinds.items()
    }
    return [f"{name}={most}:{most}" for name, most in found.items()]


def environment() -> list[str]:
    """Return the options that say where everything is."""
    return [
        *("--workdir", str(ROOT), "--env", f"{criu_program.VARIABLE}={_criu()}"),
        *("--env", "PYTHONDONTWRITEBYTECODE=1"),
    ]


def wanted() -> list[Path]:
    """Return the folders of Python, CRIU and the checkout."""
    return sorted({Path(sys.base_prefix).resolve(), _criu().parent.parent.resolve(), ROOT})


def readable(folder: Path) -> list[str]:
    """Return options that lay an open folder, made in `folder`, over each closed one above what is wanted."""
    closed = {
        next((up for up in reversed(path.parents) if not up.stat().st_mode & 1), None)
        for path in wanted()
    }
    options = []
    for one in closed - {None}:
        open_folder = folder / "open" / str(one).strip("/").replace("/", "-")
        open_folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        below = [path for path in wanted() if one in path.parents]
        for path in below:
            (open_folder / path.relative_to(one)).mkdir(parents=True, exist_ok=True)
        options += ["--volume", f"{open_folder}:{one}", *volumes(below)]
    return options


def kept(options: list[str]) -> list[str]:
    """Return options that show what is wanted also where a container has a file system of its own above it."""
    covered = [Path(word.partition(":")[0]) for word in options if word.startswith("/")]
    return volumes([path for path in wanted() if any(map(path.is_relative_to, covered))])


def volumes(paths: list[Path]) -> list[str]:
    """Return options that show folders where they are here."""
    return [word for path in paths for word in ("--volume", f"{path}:{path}:ro")]


def result(arguments: object, status: int, stdout: str, stderr: str) -> Result:
    """Return what `inside` printed."""
    if status:
        raise AssertionError(f"{arguments}\n{stdout[-2000:]}\n{stderr[-4000:]}")
    return decoding.from_json(stdout, Result)


def _criu() -> Path:
    found = criu_program.find()
    assert found is not None
    return found.resolve()
