"""The documentation and the code say the same."""

import json
import re
from pathlib import Path

import pytest

from jupyter_gpuckpt.wire import progress
from jupyter_gpuckpt.wire.statuses import SOME_NOT_SAVED, STATUS_AND_EXIT

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture
def generate(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    import _generate  # noqa: PLC0415 - found in docs only

    return _generate


def headings(page):
    return re.findall(r"^#+ `?(.+?)`?$", page, re.MULTILINE)


def test_every_setting_is_in_the_reference(generate):
    sections = re.split(r"^## c\.", generate.configuration.page(), flags=re.MULTILINE)[1:]
    for (name, kind, *_), section in zip(generate.configuration.CLASSES, sections, strict=True):
        found = headings(section)
        assert section.startswith(f"{name}\n")
        assert found
        assert set(found) == set(kind.class_own_traits(config=True))


def test_every_variable_of_the_environment_is_in_the_reference(generate):
    read = {
        name
        for package in ("jupyter_gpuckpt", "kernel_provisioner")
        for module in (ROOT / package).rglob("*.py")
        for name in re.findall(r"JUPYTER_GPUCKPT_[A-Z_]+", module.read_text())
    }
    assert set(generate.configuration.VARIABLES) == read


def test_every_command_is_in_the_reference(generate):
    page = headings(generate.command_line.page())
    for command in (
        "doctor",
        "save",
        "prune",
        "remote",
        "remote add",
        "remote key",
        "remote fetch",
    ):
        assert f"jupyter gpuckpt {command}" in page
    statuses = generate.command_line.page().rpartition("## Exit status")[2]
    for status in {status for _, status in STATUS_AND_EXIT.values()} | {SOME_NOT_SAVED}:
        assert f"| {status} |" in statuses


def test_every_request_is_in_the_reference(generate):
    page = headings(generate.rest.page())
    for route, handler in generate.rest.ROUTES.items():
        for method in {"get", "put", "post", "patch", "delete"} & set(vars(handler)):
            assert f"{method.upper()} {route}" in page


def test_every_command_of_the_extension_is_in_the_reference(generate):
    rows = generate.jupyterlab.commands().splitlines()[2:]
    declared = re.findall(
        r"'(gpuckpt:[\w-]+)'", (ROOT / "labextension/src/kernel/commands.ts").read_text()
    )
    assert len(rows) == len(set(declared))
    for row in rows:
        label, caption, *_ = (cell.strip() for cell in row.strip("|").split("|"))
        assert label
        assert len(caption) > 1


def test_every_place_for_a_generated_part_can_be_filled(generate):
    places = [
        place
        for page in DOCS.rglob("*.md")
        for place in re.findall(r"<!-- generated: (.+?) -->", page.read_text())
    ]
    assert set(places) == set(generate.PARTS)
    for part in generate.PARTS.values():
        assert part().strip()


def test_what_contributors_are_led_to_exists():
    page = (DOCS / "contributing.md").read_text()
    changes = [line for line in page.splitlines() if line.startswith("| ")][2:]
    named = [
        name for line in changes for name in re.findall(r"`([\w./-]+/[\w./-]+|[A-Z]+\.md)`", line)
    ]
    assert len(changes) >= 12
    assert len(named) > 2 * len(changes)
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_to_files_that_exist(name):
    links = re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", (ROOT / name).read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize(
    ("picture", "stages"),
    [
        ("save", {*progress.SAVE_STAGES, *progress.SUSPEND_STAGES}),
        ("resume", {*progress.RESUME_STAGES}),
    ],
)
def test_the_pictures_have_the_stages_of_operations(picture, stages):
    drawn = re.findall(
        r"<text [^>]*>([^<]+)</text>", (DOCS / "diagrams" / f"{picture}.svg").read_text()
    )
    # One box stands for what is done to a GPU before the freeze.
    assert stages - {progress.Stage.GPU_LOCK, progress.Stage.GPU_RELEASE} <= set(drawn)


#: JupyterLab's own menus and entries.
JUPYTERS = {"File", "Kernel", "Settings", "Settings Editor", "Shut Down"}
GUIDES = (
    "README",
    "docs/getting-started",
    "docs/gpu",
    "docs/other-servers",
    "docs/reference/remotes",
    "docs/remotes",
    "docs/user-guide",
)


def test_every_control_that_the_guides_and_the_demo_name_exists():
    extension = ROOT / "labextension"
    sources = "".join(path.read_text() for path in (extension / "src").rglob("*.ts*"))
    schemas = [json.loads(path.read_text()) for path in (extension / "schema").glob("*.json")]
    titles = {schema["title"] for schema in schemas}
    titles |= {one["title"] for schema in schemas for one in schema.get("properties", {}).values()}
    labels = JUPYTERS | titles | set(re.findall(r"trans\.__\(\s*'([^']+)'", sources))
    demo = json.loads((ROOT / "binder" / "demo.ipynb").read_text())
    text = "\n".join(
        "".join(cell["source"]) for cell in demo["cells"] if cell["cell_type"] == "markdown"
    )
    named = re.findall(r"\*\*([^*]+)\*\*", text)
    for page in [text, *((ROOT / f"{name}.md").read_text() for name in GUIDES)]:
        named += re.findall(r"(?<!\*)\*([A-Z][^*\n]*)\*(?!\*)", page)
    controls = {control for name in named for control in name.split(" → ")}
    assert {"Suspend Kernel", "Restore This Snapshot"} <= controls <= labels


def test_the_guide_to_remotes_is_short():
    assert len((DOCS / "remotes.md").read_text().split()) <= 800


def test_every_comparison_names_its_sources():
    sections = re.split(r"^## vs ", (DOCS / "compared.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(sections) >= 10
    for section in sections:
        assert re.search(r"^Sources?: .*?\]\(https://", section, re.MULTILINE | re.DOTALL), section


def test_the_modules_that_the_security_model_names_exist():
    modules = re.findall(r"`([\w/]+\.py)`", (DOCS / "security.md").read_text())
    assert len(modules) >= 15
    assert [name for name in modules if not (ROOT / "jupyter_gpuckpt" / name).exists()] == []
