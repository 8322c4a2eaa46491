"""The same in Notebook 7, which has no status bar and another shell."""

import importlib.util

import pytest

from tests.browser.notebook_page import complaints_in
from tests.conftest import missing

pytestmark = pytest.mark.browser


def test_a_notebook_is_suspended_and_resumed_and_its_history_is_shown(open_notebook, pages, expect):
    if importlib.util.find_spec("notebook") is None:
        missing("browser", "notebook is not installed")
    complaints = complaints_in(pages)
    notebook = open_notebook(
        "seven.ipynb", "x = 41; print(x)", "print(x + 1)", place="notebooks"
    ).require_engine()
    notebook.run_cell(0, "41")
    notebook.press("suspend")
    expect(notebook.chip).to_have_text("Suspended")
    expect(notebook.toasts).to_contain_text("Suspended seven.ipynb")
    notebook.banner.get_by_role("button", name="History").click()
    expect(notebook.snapshots()).to_contain_text("current")
    notebook.banner.get_by_role("button", name="Resume").click()
    expect(notebook.chip).to_have_text("Running")
    notebook.run_cell(1, "42")

    # The list of files has no notebook, and the extension works there all the same.
    notebook.press("suspend")
    expect(notebook.banner).to_be_visible()
    notebook.page.goto(f"{notebook.server.url}/tree/?token={notebook.server.token}")
    waiting = notebook.page.locator(".jp-GpuCkptWaiting button")
    expect(waiting).to_be_visible()
    expect(waiting).to_contain_text("Continue seven.ipynb")
    notebook.page.get_by_role("tab", name="Running").click()
    resume = notebook.page.get_by_role("button", name="Resume seven.ipynb")
    resume.click()
    expect(resume).to_have_count(0)
    expect(waiting).to_be_hidden()
    assert complaints == []
