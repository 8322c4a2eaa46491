"""What the page says is so: of a machine where nothing can be saved, of a notebook that was deleted, of a suspended kernel."""

import json

import pytest

from jupyter_gpuckpt.host.doctor_checks import INSTALL
from tests.browser.lab_server import running_lab
from tests.browser.notebook_page import NotebookPage, complaints_in

pytestmark = pytest.mark.browser

#: What the browser's clipboard holds.
CLIPBOARD = "() => navigator.clipboard.readText()"


@pytest.fixture
def bare_lab(tmp_path):
    """Yield a JupyterLab server on a machine without CRIU."""
    config = tmp_path / "config"
    config.mkdir()
    settings = {"GpuCkptDaemon": {"criu": "/no/such/criu"}}
    (config / "jupyter_server_config.json").write_text(json.dumps(settings))
    with running_lab(tmp_path) as [server]:
        yield server


@pytest.mark.slow
def test_a_machine_where_nothing_can_be_saved_is_told_once(bare_lab, context, expect, picture):
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=bare_lab.url)
    complaints = complaints_in(context)
    bare_lab.write_notebook("bare.ipynb", "print(6 * 7)")
    notebook = NotebookPage(context.new_page(), expect, bare_lab, "bare.ipynb").open()
    toast = notebook.toasts.filter(has_text="Kernels cannot be saved here: CRIU")
    expect(toast).to_contain_text(INSTALL)
    picture(notebook.page)
    toast.get_by_role("button", name="Copy Command").click()
    notebook.wait_for(f"async text => (await ({CLIPBOARD})()) === text", INSTALL)
    toast.get_by_role("button", name="Details").click()
    details = notebook.page.locator(".jp-Dialog")
    expect(details).to_contain_text("/no/such/criu")
    expect(details.get_by_role("row").filter(has_text="platform")).to_contain_text("passed")
    picture(notebook.page)
    details.get_by_role("button", name="Close").click()

    # A press gives the same cause and the same remedy.
    notebook.main_button.click()
    pressed = notebook.toasts.filter(has_text="This kernel cannot be saved: CRIU")
    expect(pressed).to_contain_text(INSTALL)
    expect(pressed.get_by_role("button", name="Copy Command")).to_be_visible()
    picture(notebook.page)

    toast.get_by_role("button", name="Repeat").click()
    expect(toast).to_have_count(0)
    notebook.open()
    expect(notebook.chip).to_have_text("Cannot be saved")
    expect(notebook.toasts).to_have_count(0)
    notebook.run_cell(0, "42")
    assert complaints == []


def test_a_deleted_notebook_comes_back_with_its_kernel(open_notebook, pages, expect, picture):
    complaints = complaints_in(pages)
    notebook = open_notebook("gone.ipynb", "x = 41; print(x)", "print(x + 1)").require_engine()
    notebook.run_cell(0, "41")
    kernel_id = notebook.kernel_id()
    notebook.press("suspend")
    expect(notebook.chip).to_have_text("Suspended")
    # The chip alone says so: Jupyter has no word for it.
    expect(notebook.page.locator(".jp-Notebook-ExecutionIndicator").first).to_be_hidden()
    status_bar = notebook.page.locator("#jp-main-statusbar")
    expect(status_bar).to_contain_text("Python 3")
    expect(status_bar).not_to_contain_text("Disconnected")
    picture(notebook.page)

    notebook.execute("docmanager:save")
    notebook.execute("application:close")
    (notebook.server.root_dir / "gone.ipynb").unlink()
    notebook.execute("gpuckpt:show-sessions")
    card = notebook.sessions.locator(f"[data-kernel='{kernel_id}']")
    # One state has one way back.
    expect(card.get_by_role("button", name="Resume")).to_have_count(1)
    expect(card.get_by_role("button", name="Restore This Snapshot")).to_have_count(0)
    card.get_by_role("button", name="Open").click()
    question = notebook.page.locator(".jp-Dialog")
    expect(question).to_contain_text("Its cells and outputs are in the snapshot of")
    picture(notebook.page)
    question.get_by_role("button", name="Bring Back the Notebook").click()
    expect(notebook.chip).to_have_text("Suspended")
    expect(notebook.cell(0).locator(".jp-OutputArea-output")).to_have_text("41")
    assert notebook.kernel_id() == kernel_id
    notebook.run_cell(1, "42")
    # What the suspend freed is in use again.
    expect(notebook.toasts.filter(has_text="freed")).to_have_count(0)
    picture(notebook.page)
    assert complaints == []


def test_a_narrow_window_has_the_buttons_and_consoles_have_the_shortcuts(
    open_notebook, expect, picture
):
    notebook = open_notebook("narrow.ipynb", "x = 41; print(x)").require_engine()
    notebook.run_cell(0, "41")
    notebook.page.set_viewport_size({"width": 700, "height": 600})
    # JupyterLab moves what does not fit beside the side bar into a menu, from the right.
    expect(notebook.main_button).to_be_visible()
    expect(notebook.menu_button).to_be_visible()
    picture(notebook.page)
    notebook.execute("notebook:create-console", insertMode="split-bottom")
    console = notebook.page.locator(".jp-ConsolePanel")
    console.locator(".jp-CodeConsole-promptCell .cm-content").click()
    notebook.page.keyboard.press("Alt+Shift+U")
    expect(console.locator(".jp-GpuCkptSuspended")).to_be_visible()
    expect(console.locator("[data-jp-item-name='kernelStatus']")).to_be_hidden()
    picture(notebook.page)
    notebook.page.keyboard.press("Alt+Shift+R")
    expect(console.locator(".jp-GpuCkptSuspended")).to_be_hidden()
