"""The project's shape: small modules, telling names, no trace of the machine it was written on."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = [ROOT / "jupyter_gpuckpt", ROOT / "kernel_provisioner" / "gpuckpt_provisioner"]
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]

MAX_LINES = 500
EMPTY_NAMES = {"base", "common", "core", "helpers", "misc", "util", "utils"}

#: Folders of somebody's machine: home directories, work directories, temporary ones with a random name.
MACHINE_PATHS = re.compile(
    r"(?<![\w.$}/-])/(work|root|workspace|home/(?!jovyan\b|\$)\w+|Users/\w+|mnt/data)/"
)
TEXT = {
    ".c",
    ".cfg",
    ".css",
    ".ipynb",
    ".json",
    ".md",
    ".py",
    ".sh",
    ".toml",
    ".ts",
    ".tsx",
    ".txt",
    ".yaml",
    ".yml",
    "",
}
#: Made by other programs.
GENERATED = ("jupyter_gpuckpt/labextension/", "labextension/yarn.lock")


def project_files() -> list[Path]:
    """Return the files of the project: tracked, or new and not ignored; without git, those of the packages."""
    listed = subprocess.run(
        [
            "git",
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        return MODULES
    names = [name for name in listed.stdout.split("\0") if name and not name.startswith(GENERATED)]
    return [path for name in names if (path := ROOT / name).is_file() and path.suffix in TEXT]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Return the content of every module by its name."""
    return {name: module.read_text() for name, module in zip(NAMES, MODULES, strict=True)}


@pytest.fixture(scope="module")
def parsed(texts: dict[str, str]) -> dict[str, ast.Module]:
    """Return the syntax tree of every module by its name."""
    return {name: ast.parse(text) for name, text in texts.items()}


# One test for all modules: a test for each would be collected by every worker of a run.


def test_every_module_is_small(texts):
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    long = {name: count for name, count in lines.items() if count > MAX_LINES}
    assert not long, f"{long} lines; {MAX_LINES} are the most"


def test_every_module_says_what_it_is(texts, parsed):
    silent = [
        name
        for name, tree in parsed.items()
        if not name.endswith("/_version.py") and texts[name].strip() and not ast.get_docstring(tree)
    ]
    assert not silent, f"no docstring: {silent}"


def test_no_name_is_a_dumping_ground():
    parts = {part for module in MODULES for part in module.relative_to(ROOT).with_suffix("").parts}
    assert not parts & EMPTY_NAMES


def test_no_file_names_a_folder_of_somebodys_machine():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in project_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if MACHINE_PATHS.search(line) and path != Path(__file__)
    ]
    assert not found, "\n".join(found)


def test_one_module_decodes_what_others_wrote(texts):
    """msgspec lets errors pass that are none of its own; `decoding` does not."""
    raw = re.compile(r"msgspec\.(json|msgpack)\.(decode|Decoder)\b")
    found = [
        name
        for name, text in texts.items()
        if raw.search(text) and not name.endswith("/decoding.py")
    ]
    assert not found, found


def late_hooks(name: str, tree: ast.Module) -> list[str]:
    """Return the assignments of a module that give a hook to an object after its construction, or leave room for that.

    The composition root of the daemon constructs and does nothing else, so there every assignment to an attribute of another object
    counts. In other modules such an attribute may be a plain value: those of lambda expressions (but for Python's own hooks, of `sys`)
    and to names in `on_` count. A public attribute of an object that begins as a lambda expression is a hook that waits for its
    assignment.
    """
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        is_function = isinstance(node.value, ast.Lambda)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for one in ast.walk(target):
                if not isinstance(one, ast.Attribute) or not isinstance(one.ctx, ast.Store):
                    continue
                owner = ast.unparse(one.value)
                if owner == "self":
                    is_late = is_function and not one.attr.startswith("_")
                else:
                    is_root = name.endswith("/daemon/service.py")
                    is_lambda = is_function and owner != "sys"
                    is_late = is_root or is_lambda or one.attr.startswith("on_")
                if is_late:
                    found.append(f"{name}:{one.lineno}: {ast.unparse(one)}")
    return found


def test_every_part_is_complete_when_it_is_constructed(parsed):
    found = [hook for name, tree in parsed.items() for hook in late_hooks(name, tree)]
    assert not found, "\n".join(found)
