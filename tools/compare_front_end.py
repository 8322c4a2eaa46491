"""Build the front end and compare the result with the committed bundle: `python tools/compare_front_end.py`, run by `make test-node`.

The build is made in a copy and does not change the committed bundle. It needs node on the PATH and labextension/node_modules.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUNDLE = Path("jupyter_gpuckpt", "labextension")

#: The name of `remoteEntry` with the digest of its content, in file names and in other files.
_ENTRY = re.compile(rb"remoteEntry\.[0-9a-f]{16}\.js")
#: A module's number in `remoteEntry`, which depends on the path of the checkout.
_MODULE = re.compile(rb"\b\d{1,4}\b")


def main() -> int:
    """Return 0 if the committed bundle equals a build of its sources; else print a line for each difference and return 1."""
    with tempfile.TemporaryDirectory(prefix="front-end-", dir=ROOT / ".venv") as folder:
        built = files(build(Path(folder)))
    committed = files(ROOT / BUNDLE)
    different = [
        name
        for name in sorted(built.keys() | committed.keys())
        if built.get(name) != committed.get(name)
    ]
    for name in different:
        where = "differs" if name in built and name in committed else "is only in one of the two"
        print(f"{BUNDLE}/{name} {where}", file=sys.stderr)
    if different:
        print(
            "The committed front end is not what its sources make: `make front-end`, and commit it.",
            file=sys.stderr,
        )
    return 1 if different else 0


def build(folder: Path) -> Path:
    """Build in `folder`, which must be on the same file system, and return the path of the bundle."""
    # Links to files: the modules are half a gigabyte, and a link to their folder would change the numbers of modules.
    subprocess.run(["cp", "--archive", "--link", ROOT / "labextension", folder], check=True)
    (folder / BUNDLE).mkdir(parents=True)
    subprocess.run(["jlpm", "build:prod"], cwd=folder / "labextension", check=True)
    return folder / BUNDLE


def files(bundle: Path) -> dict[str, bytes]:
    """Return the files of a bundle by name, without the parts that differ between two checkouts."""
    found = {}
    for path in bundle.rglob("*"):
        if path.is_file():
            name, content = path.relative_to(bundle).as_posix(), path.read_bytes()
            if _ENTRY.fullmatch(path.name.encode()):
                content = _MODULE.sub(b"0", content)
            found[_masked(name.encode()).decode()] = _masked(content)
    return found


def _masked(text: bytes) -> bytes:
    return _ENTRY.sub(b"remoteEntry.js", text)


if __name__ == "__main__":
    sys.exit(main())
