"""The project's shape: telling names, maps that are complete, no trace of the machine it was written on."""

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = [ROOT / "jupyter_gpuckpt", ROOT / "kernel_provisioner" / "gpuckpt_provisioner"]
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]

#: Stems that several packages of the product may have: Python's own, and one role in each process.
REPEATED_STEMS = {"__init__", "__main__", "app", "service", "traits"}
MAX_ROOMS = 18
MAX_BYTES = {"ARCHITECTURE.md": 20_000}
MAX_LINES = {"CONTRIBUTING.md": 120}
#: Words that were given up, and what is said instead: ARCHITECTURE.md has one word for each thing.
FORMER_WORDS = {"far": "remote", "lane": "ferry", "lanes": "ferries"}
#: Those that are still a word of sentences.
ORDINARY_WORDS = {"far"}
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
    ".S",
    ".h",
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


def test_a_stem_occurs_once():
    """Check that a module can be named without its folder."""
    modules = Counter(module.stem for module in MODULES)
    repeated = [stem for stem, count in modules.items() if count > 1]
    assert set(repeated) <= REPEATED_STEMS


def test_the_top_has_few_rooms():
    rooms = [path.parent.name for path in PACKAGES[0].glob("*/__init__.py")]
    assert len(rooms) <= MAX_ROOMS, rooms


def test_a_package_names_each_of_its_modules(parsed):
    missing = []
    for name, module in zip(NAMES, MODULES, strict=True):
        if module.stem in {"__init__", "__main__", "_version"}:
            continue
        package = str(Path(name).with_name("__init__.py"))
        if f"\n- `{module.stem}`: " not in (ast.get_docstring(parsed[package]) or ""):
            missing.append(name)
    assert not missing, f"not in the docstring of their package: {missing}"


def test_a_package_names_no_module_that_is_gone(parsed):
    gone = [
        f"{name}: {named}"
        for name, module in zip(NAMES, MODULES, strict=True)
        if module.stem == "__init__"
        for named in re.findall(r"^- `([\w.]+)`: ", ast.get_docstring(parsed[name]) or "", re.M)
        if not (module.with_name(f"{named}.py").is_file() or module.with_name(named).is_file())
    ]
    assert not gone, gone


def test_overviews_are_short():
    long = [name for name, most in MAX_BYTES.items() if (ROOT / name).stat().st_size > most]
    long += [
        name
        for name, most in MAX_LINES.items()
        if len((ROOT / name).read_text().splitlines()) > most
    ]
    assert not long, long


def words(identifier: str) -> set[str]:
    """Return the words of an identifier in snake case or camel case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def test_no_identifier_has_a_word_that_was_given_up():
    found = {
        f"{path.relative_to(ROOT)}: {identifier}, say {FORMER_WORDS[word]}"
        for path in project_files()
        if path.suffix in {".c", ".h", ".py", ".S", ".ts", ".tsx"} and path != Path(__file__)
        for identifier in set(re.findall(r"[A-Za-z_]\w*", path.read_text(errors="replace")))
        for word in words(identifier) & FORMER_WORDS.keys()
        if not (identifier.lower() == word and word in ORDINARY_WORDS)
    }
    assert not found, "\n".join(sorted(found))


#: Files of other projects, which comments cite: Linux, CRIU, Jupyter.
FOREIGN = re.compile(
    r"(arch|compel|criu|fs|include|ipywidgets|kernel|mm|net|schema)/|(signal_64|os_unix)\.c$|jupyter(hub|_\w+)?_config\.py$|_records\.py$"
)
#: Made by a build, or by a test.
BUILT = {
    "_version.py",
    "changing.py",
    "docs/_build",
    "pipeline.py",
    "program.py",
    "jupyter_gpuckpt/_version.py",
    "labextension/lib",
    "labextension/node_modules",
}
NAMED_FILE = re.compile(
    r"(?<![\w./~*{}<>$:%-])((?:[\w.-]+/)*[\w-]+\.(?:py|c|S|md|ts|tsx|yml))(?![\w/*{}(-])"
)
NAMED_FOLDER = re.compile(
    r"(?<![\w./~*{}<>$:%-])((?:jupyter_gpuckpt|kernel_provisioner|labextension|tests|docs|tools|deploy)/[\w/-]*\w)/?(?![\w.*{}/-])"
)
NAMED_MODULE = re.compile(r"(?<![\w./-])((?:jupyter_gpuckpt|gpuckpt_provisioner|tests)(?:\.\w+)+)")
#: Texts in which paths are prose. Of other files only comments and docstrings count.
PROSE = {".md", ".toml", ".yml"}
COMMENTS = re.compile(r'"""(.*?)"""|#(.*?)$|/\*(.*?)\*/|(?<!:)//(.*?)$', re.DOTALL | re.MULTILINE)


def prose(path: Path) -> str:
    """Return what a file says to readers."""
    text = path.read_text(errors="replace")
    if path.suffix in PROSE or path.name == "Makefile":
        return text
    return "\n".join("".join(groups) for groups in COMMENTS.findall(text))


def is_module(dotted: str) -> bool:
    """Return whether a dotted path names a package, a module, or something that a module has."""
    parts = dotted.split(".")
    for root in (ROOT, ROOT / "kernel_provisioner"):
        for count in range(len(parts), 0, -1):
            path = root.joinpath(*parts[:count])
            files = [
                file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()
            ]
            if count == len(parts) and (files or path.is_dir()):
                return True
            if files:
                return any(re.search(rf"\b{parts[count]}\b", file.read_text()) for file in files)
    return False


def test_every_path_that_is_named_exists():
    files = project_files()
    known = set(BUILT)
    for path in files:
        parts = path.relative_to(ROOT).parts
        known |= {"/".join(parts[start:]) for start in range(len(parts))}
        known |= {"/".join(parts[:end]) for end in range(1, len(parts))}
    missing = set()
    count = 0
    for path in files:
        if path.suffix not in PROSE | {".c", ".h", ".py", ".S"} and path.name != "Makefile":
            continue
        text = prose(path)
        named = [(name, NAMED_FILE) for name in NAMED_FILE.findall(text)]
        named += [(name, NAMED_FOLDER) for name in NAMED_FOLDER.findall(text)]
        named += [(name, NAMED_MODULE) for name in NAMED_MODULE.findall(text)]
        count += len(named)
        for name, kind in named:
            if kind is NAMED_MODULE:
                exists = is_module(name) or name in known
            else:
                plain = re.sub(r"^(\.\./)+(blob/main/)?", "", name)
                exists = plain in known or FOREIGN.match(plain) or (ROOT / plain).exists()
            if not exists:
                missing.add(f"{path.relative_to(ROOT)}: {name}")
    assert count > 400
    assert not missing, "\n".join(sorted(missing))


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
