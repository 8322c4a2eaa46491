"""What axe-core says of everything that is ours: in the light and the dark theme, at 100 and at 200 %."""

import importlib
import importlib.util
import itertools
import re

import pytest

from tests.conftest import missing

pytestmark = pytest.mark.browser

THEMES = ["JupyterLab Light", "JupyterLab Dark"]
#: At 200 % a page of 1280 x 800 pixels has half of them in each direction.
SIZES = [{"width": 1280, "height": 800}, {"width": 640, "height": 400}]
LOOKS = list(zip(THEMES, SIZES, strict=True))
ALL_LOOKS = list(itertools.product(THEMES, SIZES))
OURS = (".jp-GpuCkptButton", ".jp-GpuCkptChip", ".jp-GpuCkptSessions")
MENU = ".lm-Menu.jp-GpuCkptMenu"
DIALOG = ".jp-Dialog-content"
#: The entries of a snapshot's menu that open a dialog.
DIALOGS = [
    "Rename…",
    "Edit Note…",
    "Details",
    "Compare Variables with Now",
    "Restore This Snapshot",
]


@pytest.fixture
def axe():
    if importlib.util.find_spec("axe_playwright_python") is None:
        missing("browser", "axe-playwright-python is not installed")
    return importlib.import_module("axe_playwright_python.sync_playwright").Axe()


@pytest.mark.parametrize(
    "looks",
    [LOOKS, pytest.param(ALL_LOOKS, marks=pytest.mark.slow)],
    ids=["two looks", "all looks"],
)
def test_nothing_is_in_the_way_of_anybody(open_notebook, expect, axe, looks):
    def examine(*selectors):
        check(axe, notebook, looks, selectors)

    name = f"axe-{len(looks)}.ipynb"
    notebook = open_notebook(name, "x = 41; print(x)").require_engine()
    page, snapshots = notebook.page, notebook.snapshots
    notebook.run_cell(0, "41")
    notebook.press("save")
    expect(notebook.toasts).to_contain_text(f"Saved {name}")
    notebook.chip.click()
    expect(snapshots()).to_have_count(1)
    examine(*OURS, ".Toastify__toast .jp-toastContainer")
    notebook.menu_button.click()
    examine(MENU)
    page.keyboard.press("Escape")
    snapshots().get_by_role("button", name="More for").click()
    examine(MENU)
    for entry in DIALOGS:
        page.get_by_role("menuitem", name=entry, exact=True).click()
        expect(page.locator(DIALOG)).to_be_visible()
        examine(DIALOG)
        page.keyboard.press("Escape")
        expect(page.locator(DIALOG)).to_have_count(0)
        snapshots().get_by_role("button", name="More for").click()
    page.keyboard.press("Escape")
    notebook.sessions.get_by_role("button", name="Clean Up…").click()
    expect(page.locator(DIALOG)).to_contain_text("No snapshot would be deleted.")
    examine(DIALOG)
    page.keyboard.press("Escape")

    notebook.press("suspend")
    expect(notebook.banner).to_be_visible()
    expect(snapshots()).to_have_count(2)
    examine(*OURS, ".jp-GpuCkptSuspended")
    notebook.execute("filebrowser:activate")
    examine(".jp-GpuCkptWaiting")
    notebook.execute("running:show-panel")
    expect(page.get_by_role("button", name=f"Resume {name}")).to_be_visible()
    examine(".jp-GpuCkptRunning")
    notebook.execute("launcher:create")
    card = page.locator(".jp-LauncherCard", has_text=re.compile("Continue|suspended sessions"))
    expect(card).to_be_visible()
    card.evaluate("card => card.classList.add('of-ours')")
    examine(".of-ours")


def check(axe, notebook, looks, selectors):
    """Check that axe-core finds nothing within these parts of the page, with these themes and sizes."""
    body = notebook.page.locator("body")
    for theme, size in looks:
        notebook.execute("apputils:change-theme", theme=theme)
        notebook.expect(body).to_have_attribute("data-jp-theme-name", theme)
        # It covers the page, and another theme within its last 200 ms would have JupyterLab remove it twice.
        notebook.page.wait_for_selector("#jupyterlab-splash", state="detached")
        notebook.page.set_viewport_size(size)
        context = {"include": [[selector] for selector in selectors]}
        told = [
            (violation["id"], node["html"][:200], node.get("failureSummary", ""))
            for violation in axe.run(notebook.page, context=context).response["violations"]
            for node in violation["nodes"]
        ]
        assert told == [], f"{theme}, {size}"
    notebook.page.set_viewport_size(SIZES[0])
