"""What axe-core says of everything that is ours, in the light and in the dark theme."""

import importlib
import importlib.util

import pytest

from tests.conftest import missing

pytestmark = pytest.mark.browser

THEMES = ["JupyterLab Light", "JupyterLab Dark"]
OURS = (".jp-GpuCkptButton", ".jp-GpuCkptChip", ".jp-GpuCkptSessions")


@pytest.fixture
def axe():
    if importlib.util.find_spec("axe_playwright_python") is None:
        missing("browser", "axe-playwright-python is not installed")
    return importlib.import_module("axe_playwright_python.sync_playwright").Axe()


def test_nothing_is_in_the_way_of_anybody(open_notebook, expect, axe):
    notebook = open_notebook("axe.ipynb", "x = 41; print(x)").require_engine()
    notebook.run_cell(0, "41")
    notebook.press("save")
    notebook.chip.click()
    expect(notebook.snapshots()).to_have_count(1)
    for theme in THEMES:
        wear(notebook, theme)
        examine(axe, notebook, *OURS)
    notebook.press("suspend")
    expect(notebook.banner).to_be_visible()
    expect(notebook.snapshots()).to_have_count(2)
    for theme in reversed(THEMES):
        wear(notebook, theme)
        examine(axe, notebook, *OURS, ".jp-GpuCkptSuspended")
    notebook.snapshots().first.get_by_role("button", name="Restore This Snapshot").click()
    expect(notebook.page.locator(".jp-Dialog")).to_be_visible()
    examine(axe, notebook, ".jp-Dialog-content")
    notebook.page.keyboard.press("Escape")


def wear(notebook, theme):
    """Change the theme."""
    notebook.execute("apputils:change-theme", theme=theme)
    body = notebook.page.locator("body")
    notebook.expect(body).to_have_attribute("data-jp-theme-name", theme)


def examine(axe, notebook, *selectors):
    """No rule is broken seriously within these parts of the page."""
    found = axe.run(notebook.page, context={"include": [[selector] for selector in selectors]})
    told = [
        (violation["id"], node["html"][:200], node.get("failureSummary", ""))
        for violation in found.response["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
    assert told == []
