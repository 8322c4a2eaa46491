"""The committed JavaScript bundle is made from the committed sources; no node is needed to tell."""

import hashlib
import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCES = ROOT / "labextension"
BUNDLE = ROOT / "jupyter_gpuckpt" / "labextension"
REBUILD = "run `make front-end` and commit jupyter_gpuckpt/labextension"


def source_hash():
    """Return what labextension/source-hash.mjs writes: the digest of the lines that sha256sum would print."""
    paths = [SOURCES / name for name in ("package.json", "tsconfig.json", "yarn.lock")]
    for folder in ("schema", "src", "style"):
        paths += [path for path in (SOURCES / folder).rglob("*") if path.is_file()]
    names = sorted(path.relative_to(SOURCES).as_posix() for path in paths)
    lines = [
        f"{hashlib.sha256(text(name)).hexdigest()}  {name}\n"
        for name in names
        if not any(part == "__tests__" or part.startswith(".") for part in name.split("/"))
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def text(name):
    """With line ends as git stores them."""
    return (SOURCES / name).read_bytes().replace(b"\r\n", b"\n")


def bundle_file(name):
    return json.loads((BUNDLE / name).read_text())


def test_the_bundle_was_built_from_these_sources():
    assert bundle_file("source-hash.json")["sha256"] == source_hash(), REBUILD


def test_the_bundle_is_whole():
    package = bundle_file("package.json")
    load = package["jupyterlab"]["_build"]["load"]
    assert (BUNDLE / load).is_file(), REBUILD
    assert (BUNDLE / "static" / "style.js").is_file(), REBUILD
    source = json.loads((SOURCES / "package.json").read_text())
    assert package["version"] == source["version"], REBUILD


def test_the_bundle_asks_for_no_newer_jupyterlab_than_it_needs():
    package = json.loads((SOURCES / "package.json").read_text())
    [entry] = (BUNDLE / "static").glob("remoteEntry.*.js")
    asked = dict(
        re.findall(
            r'"(@jupyterlab/[a-z-]+)",import:null,requiredVersion:"([^"]+)"', entry.read_text()
        )
    )
    assert asked, REBUILD
    assert asked.items() <= package["dependencies"].items()


def test_the_bundle_is_small():
    assert sum(path.stat().st_size for path in BUNDLE.rglob("*") if path.is_file()) < 200_000
