"""A session goes by a remote from one machine to another, as its user sees it in the panel."""

import re

import pytest

from jupyter_gpuckpt.remote_records import Remote
from tests.browser.lab_server import running_lab
from tests.browser.notebook_page import HAS_IDLE_KERNEL, NotebookPage
from tests.far.joined import join

pytestmark = pytest.mark.browser

NOTEBOOK = "thesis.ipynb"


@pytest.fixture
def machines(tmp_path_factory, tmp_path):
    """Two JupyterLab servers with data directories of their own, and a remote that both can open."""
    one, other = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")
    remote = Remote("share", f"file://{tmp_path}/share")
    joined = join(one / "gpuckpt", remote)
    join(other / "gpuckpt", remote, joined.phrase)
    with running_lab(one, other) as servers:
        yield servers


def test_a_session_is_uploaded_and_goes_on_elsewhere(machines, context, expect):
    one, other = machines
    one.write_notebook(NOTEBOOK, "x = 41; print(x)")
    there = NotebookPage(context.new_page(), expect, one, NOTEBOOK).open().require_engine()
    there.run_cell(0, "41")
    there.chip.click()
    there.press("save")
    badge = there.snapshots().locator("[data-upload='uploaded']")
    # Uploads get what nobody else wants of the processor.
    expect(badge).to_have_text("uploaded", timeout=200_000)
    expect(badge).to_have_attribute("title", "Uploaded to share.")
    # What this machine has is not offered to it.
    expect(there.sessions).to_contain_text("All sessions in the remotes are on this machine.")

    other.write_notebook(NOTEBOOK, "print(x + 1)")
    here = NotebookPage(context.new_page(), expect, other, NOTEBOOK).open_lab()
    here.page.locator("[data-id='jp-gpuckpt-sessions']").click()
    item = here.sessions.locator(f"[data-path='{NOTEBOOK}']")
    expect(item).to_contain_text(re.compile(r"thesis\.ipynb.*\d [MG]B.*share"))
    item.get_by_role("button", name="Fetch and Resume…").click()
    dialog = here.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text(re.compile(r"[MG]B to fetch\."))
    dialog.get_by_role("button", name="Fetch and Resume", exact=True).click()
    expect(here.toasts.filter(has_text=f"Fetched {NOTEBOOK}")).to_be_visible()
    expect(here.toasts.filter(has_text=f"Resumed {NOTEBOOK}")).to_be_visible()
    expect(item).to_have_count(0)
    here.page.wait_for_function(HAS_IDLE_KERNEL)
    here.run_cell(0, "42")
    expect(here.chip).to_have_text("Running")
