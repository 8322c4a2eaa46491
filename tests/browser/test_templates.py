"""Templates in the page: one is made of a snapshot, the launcher shows it, and its kernels begin with what the cells have made."""

import os
import re
from pathlib import Path

import pytest

from tests.browser.notebook_page import HAS_IDLE_KERNEL

pytestmark = pytest.mark.browser

NOTEBOOK = "prepare.ipynb"
CELLS = ("import numpy as np\ndata = np.arange(10)", "data.sum()")
TITLE = "Python 3 (prepare ready)"


def take_picture(page, name):
    if folder := os.environ.get("GPUCKPT_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def type_into(notebook, index, code):
    notebook.cell(index).locator(".cm-content").click()
    notebook.page.keyboard.type(code)


@pytest.mark.slow
def test_a_template_is_made_of_a_snapshot_and_started_from_the_launcher(
    open_notebook, expect, lab_server
):
    lab_server.delete_snapshots()
    notebook = open_notebook(NOTEBOOK, *CELLS).require_engine()
    page = notebook.page
    notebook.start_cell(0)
    notebook.run_cell(1, "np.int64(45)")
    notebook.chip.click()
    notebook.press("save")
    snapshot = notebook.snapshots()
    expect(snapshot).to_have_count(1)
    snapshot.get_by_role("button", name=re.compile("^More for")).click()
    entry = page.locator(".lm-Menu-item").filter(
        has=page.get_by_text("Save as Template…", exact=True)
    )
    expect(entry).to_be_visible()
    take_picture(page, "template-menu")
    entry.click()
    dialog = page.locator(".jp-Dialog")
    expect(dialog.get_by_role("textbox")).to_have_value("prepare-ready")
    take_picture(page, "template-dialog")
    dialog.get_by_role("button", name="Save").click()
    expect(notebook.toasts.filter(has_text="Made the template prepare-ready")).to_be_visible()

    # The launcher asks the server for the kernels as often as it likes; a new page asks at once.
    page.evaluate("() => window.jupyterapp.serviceManager.kernelspecs.refreshSpecs()")
    notebook.execute("launcher:create")
    card = page.locator(".jp-LauncherCard[data-category='Notebook']").filter(has_text=TITLE)
    expect(card).to_be_visible()
    take_picture(page, "template-launcher")
    before = page.evaluate("() => window.jupyterapp.shell.currentWidget.id")
    card.click()
    notebook.wait_for(
        "id => window.jupyterapp.shell.currentWidget.id !== id"
        " && window.jupyterapp.shell.currentWidget.context?.path",
        before,
    )
    notebook.wait_for(HAS_IDLE_KERNEL)
    type_into(notebook, 0, "data.sum()")
    notebook.run_cell(0, "np.int64(45)")
    type_into(notebook, 1, "data[0] = 100; data.sum()")
    notebook.run_cell(1, "np.int64(145)")
    take_picture(page, "template")

    # A restart gives the same start again.
    # The command ends with the restart, which the dialog holds back.
    page.evaluate("() => { void window.jupyterapp.commands.execute('kernelmenu:restart'); }")
    dialog.get_by_role("button", name="Confirm Kernel Restart").click()
    expect(dialog).to_have_count(0)
    notebook.wait_for(HAS_IDLE_KERNEL)
    notebook.run_cell(0, "np.int64(45)")
    assert "is no copy" not in lab_server.log_tail()
