"""What axe-core says of everything that is ours: in the light and the dark theme, at 100 and at 200 %."""

import importlib
import importlib.util
import itertools
import re

import pytest

from tests.browser.lab_page import SIZE
from tests.browser.notebook_page import HAS_KERNEL
from tests.conftest import missing

pytestmark = pytest.mark.browser

THEMES = ["JupyterLab Light", "JupyterLab Dark"]
#: At 200 % a page of 1280 x 800 pixels has half of them in each direction.
SIZES = [SIZE, {"width": 640, "height": 400}]
LOOKS = list(zip(THEMES, SIZES, strict=True))
ALL_LOOKS = list(itertools.product(THEMES, SIZES))
OURS = (".jp-GpuCkptButton", ".jp-GpuCkptChip", ".jp-GpuCkptSessions")
MENU = ".lm-Menu.jp-GpuCkptMenu"
DIALOG = ".jp-Dialog-content"
#: A dialog hears Escape when the focus is in it, and the other size may have moved the focus.
BUTTON = f"{DIALOG} .jp-Dialog-footer button"
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
    name = f"axe-{len(looks)}.ipynb"
    notebook = open_notebook(name, "x = 41; print(x)").require_engine()
    examine = Examiner(axe, notebook)
    page, snapshots = notebook.page, notebook.snapshots
    notebook.run_cell(0, "41")
    notebook.press("save")
    expect(notebook.toasts).to_contain_text(f"Saved {name}")
    notebook.chip.click()
    expect(snapshots()).to_have_count(1)
    # Another theme takes a second of processor time, so each is looked at as a whole.
    for look in looks:
        examine.with_look(*look)
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
            page.locator(BUTTON).last.press("Escape")
            expect(page.locator(DIALOG)).to_have_count(0)
            snapshots().get_by_role("button", name="More for").click()
        page.keyboard.press("Escape")
        notebook.sessions.get_by_role("button", name="Clean Up…").click()
        expect(page.locator(DIALOG)).to_contain_text("No snapshot would be deleted.")
        examine(DIALOG)
        page.locator(BUTTON).last.press("Escape")
        notebook.sessions.get_by_role("button", name="Add Remote…").click()
        page.locator(DIALOG).get_by_label("Azure Blob Storage").check()
        expect(page.locator(DIALOG)).to_contain_text("Container")
        examine(DIALOG)
        page.locator(BUTTON).last.press("Escape")

    notebook.press("suspend")
    expect(notebook.banner).to_be_visible()
    expect(snapshots()).to_have_count(2)
    # JupyterLab may have opened one by itself when the test before had closed everything.
    launcher = page.locator(f"#{page.evaluate(SHOW_LAUNCHER)}")
    card = launcher.locator(".jp-LauncherCard", has_text=re.compile("Continue|suspended sessions"))
    for look in reversed(looks):
        examine.with_look(*look)
        notebook.show(name, until=HAS_KERNEL)
        notebook.execute("gpuckpt:show-sessions")
        examine(*OURS, ".jp-GpuCkptSuspended")
        notebook.execute("filebrowser:activate")
        examine(".jp-GpuCkptWaiting")
        notebook.execute("running:show-panel")
        expect(page.get_by_role("button", name=f"Resume {name}")).to_be_visible()
        examine(".jp-GpuCkptRunning")
        page.evaluate(SHOW_LAUNCHER)
        expect(card).to_be_visible()
        card.evaluate("card => card.classList.add('of-ours')")
        examine(".of-ours")


#: What axe-core finds wrong within parts of the page.
RUN = """async context => {
  const results = await axe.run(context, { resultTypes: ['violations'] });
  return results.violations;
}"""

#: Brings the first launcher to the front, makes one if there is none, and returns its id.
SHOW_LAUNCHER = """async () => {
  const { shell, commands } = window.jupyterapp;
  const find = () => [...shell.widgets('main')].find(one => one.id.startsWith('launcher'));
  const launcher = find() ?? (await commands.execute('launcher:create'), find());
  shell.activateById(launcher.id);
  return launcher.id;
}"""


class Examiner:
    """A check that axe-core finds nothing within parts of a page, in a theme and a size."""

    def __init__(self, axe, notebook):
        self._notebook, self._look = notebook, None
        notebook.page.evaluate(axe.axe_script)

    def with_look(self, theme, size):
        """Choose in which theme and size parts are examined."""
        self._look = theme, size
        self._notebook.execute("apputils:change-theme", theme=theme)
        body = self._notebook.page.locator("body")
        self._notebook.expect(body).to_have_attribute("data-jp-theme-name", theme)
        # It covers the page, and another theme within its last 200 ms would have JupyterLab remove it twice.
        self._notebook.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def __call__(self, *selectors):
        context = {"include": [[selector] for selector in selectors]}
        # In a small page the button would be behind another one, so it is small for the look only.
        self._notebook.page.set_viewport_size(self._look[1])
        found = self._notebook.page.evaluate(RUN, context)
        self._notebook.page.set_viewport_size(SIZE)
        told = [
            (violation["id"], node["html"][:200], node.get("failureSummary", ""))
            for violation in found
            for node in violation["nodes"]
        ]
        assert told == [], self._look
