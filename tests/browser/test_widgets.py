"""Widgets of a suspended kernel: drawn on a page that is loaded meanwhile, and moved."""

import os
import re

import pytest

from tests.browser.notebook_page import IN_FRONT

pytestmark = pytest.mark.browser

SLIDER = 'import ipywidgets\nslider = ipywidgets.IntSlider(value=7, description="how far")\nslider'

#: Opens Contextual Help and returns when a question of its kind has been answered, and with it all that were asked before.
ASK_FOR_HELP = """async () => {
  const { shell, commands } = window.jupyterapp;
  const notebook = shell.currentWidget;
  const kernel = notebook.sessionContext.session.kernel;
  await commands.execute('inspector:open', { refresh: true });
  shell.activateById(notebook.id);
  await kernel.requestInspect({ code: 'slider', cursor_pos: 3, detail_level: 0 });
}"""


@pytest.mark.slow
def test_a_slider_is_drawn_and_moved_while_the_kernel_is_suspended(open_notebook, expect):
    cells = [SLIDER, "print(slider.value)", "slider.value = 30; print(slider.value)"]
    notebook = open_notebook("slider.ipynb", *cells).require_engine()
    # Contextual Help takes half of it, and the chip leaves a narrow toolbar.
    notebook.page.set_viewport_size({"width": 1800, "height": 800})
    cell = notebook.page.locator(f"{IN_FRONT} .jp-CodeCell").first
    cell.locator(".cm-content").click()
    notebook.page.keyboard.press("Shift+Enter")
    readout = notebook.page.locator(f"{IN_FRONT} .jp-CodeCell .widget-slider .widget-readout")
    expect(readout).to_have_text("7")
    notebook.page.keyboard.press("Control+s")
    kernel_id = notebook.kernel_id()
    notebook.press("suspend")
    expect(notebook.chip).to_have_text("Suspended")

    for _ in range(int(os.environ.get("GPUCKPT_RELOADS", "3"))):
        notebook.reload()
        expect(readout).to_have_text("7")
        notebook.page.evaluate(ASK_FOR_HELP)
        cell.locator(".cm-content").click()
        expect(notebook.chip).to_have_text("Suspended")
        kernel = notebook.server.get(f"api/gpuckpt/kernels/{kernel_id}")
        assert kernel["state"] == "suspended"

    # A cell brings the kernel back, and both sides know the slider.
    notebook.run_cell(2, "30")
    expect(notebook.chip).to_have_text("Running")
    expect(readout).to_have_text("30")
    notebook.press("suspend")
    expect(notebook.chip).to_have_text("Suspended")

    # So does somebody who moves it.
    notebook.reload()
    expect(readout).to_have_text("30")
    notebook.page.locator(".widget-slider .noUi-handle").focus()
    notebook.page.keyboard.press("ArrowRight")
    expect(notebook.chip).to_have_text("Running")
    notebook.run_cell(1, "31")


RUNNING = """import ipywidgets, pathlib, time
bar = ipywidgets.IntSlider(value=0, max=1_000_000)
display(bar)
while not pathlib.Path("stop").exists():
    bar.value += 1
    time.sleep(0.05)"""


@pytest.mark.slow
def test_a_slider_of_a_cell_that_runs_is_drawn_and_works_afterwards(
    open_notebook, expect, lab_server
):
    cells = [RUNNING, "bar.value = 5; print(bar.value)", "print(bar.value)"]
    notebook = open_notebook("running.ipynb", *cells).require_engine()
    notebook.page.keyboard.press("Control+s")
    cell = notebook.page.locator(f"{IN_FRONT} .jp-CodeCell").first
    cell.locator(".cm-content").click()
    notebook.page.keyboard.press("Shift+Enter")
    readout = cell.locator(".widget-slider .widget-readout")
    expect(readout).to_have_text(re.compile("[1-9]"))
    notebook.press("suspend")
    expect(notebook.chip).to_have_text("Suspended")

    notebook.reload()
    expect(readout).to_have_text(re.compile("[1-9]"))
    drawn = readout.text_content()
    notebook.press("resume")
    expect(readout).not_to_have_text(drawn)
    (lab_server.root_dir / "stop").touch()
    notebook.run_cell(1, "5")
    expect(readout).to_have_text("5")
    cell.locator(".noUi-handle").focus()
    notebook.page.keyboard.press("ArrowRight")
    notebook.run_cell(2, "6")
