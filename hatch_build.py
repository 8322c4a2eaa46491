"""Compiles the C sources, as a hatchling build hook or by itself: `python3 hatch_build.py`. The hook also writes files for shells.

By itself it needs nothing but Python and a C compiler, so it also serves machines without a network.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

CRIU = Path("jupyter_gpuckpt/engine/criu")
TREE = Path("jupyter_gpuckpt/engine/tree")
FERRY = Path("jupyter_gpuckpt/engine/gpu/ferry")
STORE = Path("jupyter_gpuckpt/store")
#: What is loaded into CRIU or into kernels must not depend on a version of libc.
_WITHOUT_LIBC = ["-shared", "-fPIC", "-nostdlib", "-ffreestanding", "-fno-stack-protector"]
_LIBRARY = ["-shared", "-fPIC", "-O3"]
_STATIC = ["-static"]
#: Compiles what is static, where it is installed (Debian's musl-tools): musl's license asks for nothing beside a binary that
#: contains it, glibc's (LGPL) asks for object files. It is a tenth of the size, too.
_MUSL = "musl-gcc"
#: Every binary: its sources and how it is linked.
BINARIES = {
    TREE / "gpuckpt-init": ([TREE / "init.c", TREE / "namespaces.c"], _STATIC),
    CRIU / "criu-preload.so": (
        [CRIU / f"{part}.c" for part in ("preload", "injection", "messages", "pipes")],
        _WITHOUT_LIBC,
    ),
    STORE / "byte-groups.so": ([STORE / "byte_groups.c"], _LIBRARY),
    FERRY / "gpu-ferry.so": (
        [
            FERRY / f"ferry{part}"
            for part in (
                ".c",
                *(
                    f"_{name}.c"
                    for name in (
                        "children",
                        "copy",
                        "digest",
                        "elsewhere",
                        "imports",
                        "ipc",
                        "peers",
                    )
                ),
                "_gate.S",
            )
        ],
        [*_WITHOUT_LIBC, "-fvisibility=hidden"],
    ),
    TREE / "outside-signals.so": (
        [TREE / "outside_signals.c", TREE / "fresh_randomness.c"],
        _WITHOUT_LIBC,
    ),
}


def compile_all(root: Path) -> None:
    """Compile what the engine needs under `root`, except what is newer than its sources.

    Raises `SystemExit` with a sentence when there is no compiler or it fails.
    """
    for binary, (sources, options) in BINARIES.items():
        _compile([root / source for source in sources], root / binary, options)


def _compile(sources: list[Path], binary: Path, options: list[str]) -> None:
    read = [*sources, *sources[0].parent.glob("*.h")]
    if binary.exists() and binary.stat().st_mtime >= max(path.stat().st_mtime for path in read):
        return
    source = sources[0]
    compiler, more = _compiler(options)
    if compiler is None:
        sys.exit(
            f"No C compiler was found to compile {source}: install one (on Debian and Ubuntu: "
            "apt-get install gcc libc6-dev), or name it in the environment variable CC."
        )
    unfinished = binary.with_name(f"{binary.name}.{os.getpid()}")
    command = [compiler, "-O2", "-Wall", "-Wextra", *options, *more, "-o", str(unfinished)]
    command += map(str, sources)
    try:
        if subprocess.run(command, check=False).returncode != 0:
            sys.exit(f"{source} did not compile; the compiler's message is above.")
        unfinished.replace(binary)
    finally:
        unfinished.unlink(missing_ok=True)


def _compiler(options: list[str]) -> tuple[str | None, list[str]]:
    """Return the path of the compiler, None if there is none, and the options that it needs beside these."""
    if options is _STATIC and "CC" not in os.environ and (musl := shutil.which(_MUSL)):
        # It looks for headers in musl's folder only, where Linux's own are missing.
        folders = ["/usr/include", f"/usr/include/{sysconfig.get_config_var('MULTIARCH')}"]
        return musl, [option for folder in folders for option in ("-idirafter", folder)]
    return shutil.which(os.environ.get("CC", "cc")), []


#: Where shells and `man` look for the files of `jupyter-gpuckpt`, below the environment's folder.
_COMPLETIONS = {
    "bash": "share/bash-completion/completions/jupyter-gpuckpt",
    "zsh": "share/zsh/site-functions/_jupyter-gpuckpt",
    "fish": "share/fish/vendor_completions.d/jupyter-gpuckpt.fish",
}
_MAN_PAGE = "share/man/man1/jupyter-gpuckpt.1"
#: The arguments that are paths.
_PATHS = {"FILE", "NOTEBOOK"}


def write_shell_files(root: Path, folder: Path) -> dict[str, str]:
    """Write completions and the man page of `jupyter-gpuckpt` into `folder`; return their places in an environment by their paths."""
    import shtab  # noqa: PLC0415 - compiling needs no package
    from argparse_manpage.manpage import Manpage  # noqa: PLC0415 - the same

    sys.path.insert(0, str(root))
    from jupyter_gpuckpt.cli import arguments, completion  # noqa: PLC0415 - the same

    parser = arguments.parser("jupyter-gpuckpt")
    for action in completion.actions(parser):
        if action.metavar in _PATHS:
            action.complete = shtab.FILE
    page = Manpage(parser)
    page.manual, page.description = "jupyter-gpuckpt", arguments.DESCRIPTION.strip().rstrip(".")
    texts = {place: shtab.complete(parser, shell) for shell, place in _COMPLETIONS.items()}
    texts[_MAN_PAGE] = str(page)
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for place, text in texts.items():
        path = folder / Path(place).name
        path.write_text(text)
        written[str(path)] = place
    return written


if __name__ == "__main__":
    compile_all(Path(__file__).parent)
else:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class InitBuildHook(BuildHookInterface):
        """Puts the compiled binaries into the wheel, which thereby belongs to one platform."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Make what a wheel holds before its files are collected; a source archive holds the source."""
            if self.target_name != "wheel":
                return
            compile_all(Path(self.root))
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            if version == "standard":  # an editable one serves who works on the package
                folder = Path(self.root, "build", "shell")
                build_data["shared_data"] |= write_shell_files(Path(self.root), folder)
            build_data["artifacts"] += [str(binary) for binary in BINARIES]
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
