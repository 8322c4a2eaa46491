"""An idle kernel with an open page: its user is told before it is suspended, can keep it running, and is told what was freed."""

import json
import re

import pytest

from tests.browser.lab_server import running_lab
from tests.browser.notebook_page import NotebookPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETTINGS = {
    "MappingKernelManager": {"cull_idle_timeout": 2, "cull_interval": 1, "cull_connected": True},
    "GpuCkptServer": {"idle_notice": 10},
}


@pytest.fixture
def culling_lab(tmp_path):
    """JupyterLab that suspends a kernel after two idle seconds and a notice of ten."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "jupyter_server_config.json").write_text(json.dumps(SETTINGS))
    with running_lab(tmp_path) as [server]:
        yield server


def test_an_idle_kernel_is_announced_kept_and_then_suspended(culling_lab, context, expect):
    culling_lab.write_notebook("idle.ipynb", "x = 41; print(x)", "print(x + 1)")
    page = context.new_page()
    notebook = NotebookPage(page, expect, culling_lab, "idle.ipynb").open().require_engine()
    notebook.run_cell(0, "41")
    notice = notebook.toasts.filter(has_text="idle.ipynb is idle. It will be suspended at")
    expect(notice).to_be_visible()
    first = notice.element_handle()
    notice.get_by_role("button", name="Keep Running").click()
    notebook.wait_for("notice => !notice.isConnected", first)
    expect(notebook.chip).to_have_text("Running · suspends soon")
    # Two idle seconds later it is announced again, and nobody objects.
    expect(notice).to_be_visible()
    expect(notebook.chip).to_have_text("Suspended")
    expect(notice).to_have_count(0)
    expect(notebook.toasts).to_contain_text(
        re.compile(r"Suspended idle\.ipynb in .* s: freed .*B of RAM · .*B on disk")
    )
    expect(notebook.banner).to_be_visible()
    notebook.run_cell(1, "42")
    # What it freed is in use again.
    expect(notebook.toasts.filter(has_text="freed")).to_have_count(0)
