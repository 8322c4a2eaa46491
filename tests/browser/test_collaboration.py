"""Notebooks that the server holds: by jupyter-collaboration for several users at once, or by jupyter-server-documents.

Neither is among what the other tests need: `make test-collaboration`.
"""

import importlib.util
import json

import pytest

from tests.browser.conftest import CHROMIUM_OPTIONS, LASTING
from tests.browser.lab_page import SIZE
from tests.browser.lab_server import running_lab
from tests.browser.notebook_page import NotebookPage, complaints_in

pytestmark = pytest.mark.browser


#: The number of pages that have the current notebook open.
PAGES = """[
  ...window.jupyterapp.shell.currentWidget.content.model.sharedModel.awareness.getStates().values()
].filter(state => state.user).length"""


def needs(module):
    is_there = importlib.util.find_spec(module) is not None
    return pytest.mark.skipif(not is_there, reason=f"{module} is not installed")


@pytest.fixture(scope="module")
def lab_server(tmp_path_factory):
    """Yield a JupyterLab server whose jupyter-collaboration writes its database into a temporary folder."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "config").mkdir()
    settings = {"SQLiteYStore": {"db_path": str(folder / "ystore.db")}}
    (folder / "config" / "jupyter_server_config.json").write_text(json.dumps(settings))
    with running_lab(folder) as [server]:
        yield server


@pytest.fixture
def open_for_another(playwright, chromium_path, expect, lab_server):
    """Return a function that opens a notebook for another user: in another context, with a name of its own in its cookies."""
    chromium = playwright.chromium.launch(executable_path=chromium_path, args=CHROMIUM_OPTIONS)

    def opened(name):
        context = chromium.new_context(viewport=SIZE)
        context.set_default_timeout(120_000)
        context.add_init_script(LASTING)
        page = NotebookPage(context.new_page(), expect, lab_server, name).open()
        return page, complaints_in(context)

    yield opened
    chromium.close()


@needs("jupyter_server_ydoc")
def test_two_users_see_the_same_kernel_and_undo_and_branch_for_both(
    open_for_another, lab_server, expect
):
    lab_server.write_notebook("both.ipynb", "x = 41; print(x)", "print(x + 1)")
    one, heard_by_one = open_for_another("both.ipynb")
    one.require_engine()
    other, heard_by_other = open_for_another("both.ipynb")
    assert one.kernel_id() == other.kernel_id()
    collaborative = "() => window.jupyterapp.shell.currentWidget.context.model.collaborative"
    assert one.page.evaluate(collaborative)
    one.run_cell(0, "41")
    expect(other.cell(0).locator(".jp-OutputArea-output")).to_have_text("41")

    one.press("suspend")
    expect(one.toasts).to_contain_text("Suspended both.ipynb")
    expect(other.chip).to_have_text("Suspended")
    expect(other.banner).to_be_visible()
    file = other.page.locator("[data-file-type=notebook]", has_text="both.ipynb")
    expect(file).to_have_attribute("data-gpuckpt", "suspended")
    expect(other.toasts).to_have_count(0)
    other.banner.get_by_role("button", name="Resume").click()
    expect(one.chip).to_have_text("Running")
    expect(one.banner).to_be_hidden()
    one.run_cell(1, "42")

    # A restart by one can be undone by the same user; the other sees the states.
    other.page.bring_to_front()
    other.page.evaluate("() => void window.jupyterapp.commands.execute('kernelmenu:restart')")
    other.page.locator(".jp-Dialog .jp-mod-accept").click()
    restarted = other.toasts.filter(has_text="Restarted the kernel of both.ipynb")
    restarted.get_by_role("button", name="Undo").click()
    expect(other.toasts.filter(has_text="Restored both.ipynb")).to_be_visible()
    expect(one.chip).to_have_text("Running")
    one.run_cell(1, "42")

    # A branch has what both see, and is a notebook of its own.
    other.press("branch")
    expect(other.toasts.filter(has_text="into both-branch-1.ipynb")).to_be_visible()
    branch = other.show("both-branch-1.ipynb")
    expect(branch.cell(1)).to_contain_text("42")
    branch.run_cell(1, "42")
    assert branch.kernel_id() != one.kernel_id()
    assert heard_by_one == heard_by_other == []


@needs("jupyter_server_ydoc")
def test_a_snapshot_is_restored_in_a_copy_unless_its_user_is_alone(
    open_for_another, lab_server, expect
):
    lab_server.write_notebook("shared.ipynb", "x = 41; print(x)", "print(x + 1)")
    one, complaints = open_for_another("shared.ipynb")
    one.require_engine()
    other, _ = open_for_another("shared.ipynb")
    one.run_cell(0, "41")
    one.run_cell(1, "42")
    one.press("save")
    one.execute("gpuckpt:show-history")
    restore = one.snapshots().get_by_role("button", name="Restore This Snapshot").first
    one.wait_for(f"() => {PAGES} > 1")
    restore.click()
    dialog = one.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("Others have this notebook open.")
    dialog.get_by_role("button", name="Restore", exact=True).click()
    expect(one.toasts.filter(has_text="into shared-branch-1.ipynb")).to_be_visible()
    copy = one.show("shared-branch-1.ipynb")
    copy.run_cell(1, "42")
    assert copy.kernel_id() != other.kernel_id()

    # A user who is alone gets the cells back in place, as one undo step.
    one.show("shared.ipynb")
    other.page.close()
    one.wait_for(f"() => {PAGES} === 1")
    one.cell(1).locator(".cm-content").click()
    one.page.keyboard.press("Control+a")
    one.page.keyboard.type("print('changed')")
    one.run_cell(1, "changed")
    one.execute("gpuckpt:show-history")
    restore.click()
    expect(dialog).to_contain_text("1 cell changes.")
    dialog.get_by_role("button", name="Restore", exact=True).click()
    expect(one.toasts.filter(has_text="Restored shared.ipynb to")).to_be_visible()
    expect(one.cell(1).locator(".cm-content")).to_have_text("print(x + 1)")
    one.run_cell(1, "42")
    assert complaints == []


@needs("jupyter_server_documents")
def test_a_cell_that_cannot_resume_its_kernel_waits_for_the_button(
    open_for_another, lab_server, expect
):
    lab_server.write_notebook("waits.ipynb", "x = 41; print(x)", "print(x + 1)")
    notebook, complaints = open_for_another("waits.ipynb")
    notebook.require_engine().run_cell(0, "41")
    # The server saves the file by itself. JupyterLab would ask about a save of the page's at the same moment.
    notebook.press("suspend")
    expect(notebook.banner).to_contain_text("Press Resume before you run a cell.")
    notebook.start_cell(1)
    expect(notebook.cell(1).locator(".jp-InputPrompt")).to_have_text("[*]:")
    expect(notebook.chip).to_have_text("Suspended")
    notebook.banner.get_by_role("button", name="Resume").click()
    expect(notebook.cell(1).locator(".jp-OutputArea-output")).to_have_text("42")
    expect(notebook.chip).to_have_text("Running")
    expect(notebook.page.locator(".jp-Dialog")).to_have_count(0)
    assert complaints == []
