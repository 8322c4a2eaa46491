"""The machine of a page will go: the page counts down, kernels are saved and run on, and are suspended before the end."""

import re

import pytest

from tests.browser.lab_server import running_lab
from tests.browser.notebook_page import NotebookPage
from tests.reclaim import doubles

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def azure(monkeypatch):
    """Serve a double of Azure's metadata service, which the daemon polls."""
    with doubles.serving(doubles.Azure()) as double:
        monkeypatch.setenv("JUPYTER_GPUCKPT_RECLAIM_PROVIDER", "azure")
        monkeypatch.setenv("JUPYTER_GPUCKPT_RECLAIM_ENDPOINT", double.url)
        yield double


@pytest.fixture
def lab(tmp_path, azure):
    with running_lab(tmp_path) as [server]:
        yield server


def test_a_page_counts_down_and_runs_on_until_shortly_before(lab, azure, context, expect):
    lab.write_notebook("a.ipynb", "x = 41; print(x)", "print(x + 1)")
    page = context.new_page()
    notebook = NotebookPage(page, expect, lab, "a.ipynb").open().require_engine()
    notebook.run_cell(0, "41")
    notice = page.locator(".jp-GpuCkptNotice")
    expect(notice).to_be_hidden()

    def left():
        minutes, seconds = re.search(r"in (\d+):(\d\d)\.", notice.inner_text()).groups()
        return 60 * int(minutes) + int(seconds)

    azure.announce("told", "Terminate", 200)
    expect(notice).to_contain_text(
        "Sessions are being saved, and will be suspended shortly before that."
    )
    expect(notice).to_contain_text("Its disk is lost")
    before = left()
    expect(notice).to_contain_text(re.compile(f"in {(before - 3) // 60}:{(before - 3) % 60:02}"))
    notebook.run_cell(1, "42")
    expect(notebook.chip).to_have_text("Running")
    azure.events.clear()
    azure.announce("told", "Terminate", 25)
    expect(notice).to_contain_text("Sessions are being suspended.")
    expect(notebook.chip).to_have_text("Suspended")
    azure.events.clear()
    expect(notice).to_be_hidden()
    notebook.run_cell(1, "42")
