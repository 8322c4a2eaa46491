"""Notebooks whose server ends, as their user sees it."""

import re

import pytest

from tests.browser.notebook_page import HAS_KERNEL

pytestmark = pytest.mark.browser

#: Ends when the test has made a file. The page draws each line, so there are not more than the test needs.
COUNT = """import pathlib, time
number, stop = 0, pathlib.Path(STOP)
while not stop.exists():
    print(number)
    number += 1
    time.sleep(0.05)"""
#: One of the lines, when there are several.
SOME = "20"


@pytest.fixture
def stop(lab_server, request):
    """Return a file, and a cell that prints until it exists."""
    path = lab_server.root_dir / f"{request.node.name}.stop"
    # A test that failed and is run once more has left one.
    path.unlink(missing_ok=True)
    return path, COUNT.replace("STOP", repr(str(path)))


def expect_everything(notebook, index, expect, stop):
    """Check that a cell with output ends and has shown each line once, in order; return the number of lines."""
    expect(notebook.cell(index)).to_contain_text(SOME)
    stop.touch()
    prompt = notebook.cell(index).locator(".jp-InputPrompt")
    expect(prompt).to_have_text(re.compile(r"\[\d+\]:"), timeout=180_000)
    shown = notebook.output(index).split()
    assert shown == [str(number) for number in range(len(shown))]
    return str(len(shown))


def test_a_cell_shows_all_it_prints_over_a_reload(open_notebook, expect, stop):
    path, count = stop
    notebook = open_notebook("reload.ipynb", count).require_engine()
    notebook.start_cell(0)
    expect(notebook.cell(0)).to_contain_text(SOME)
    notebook.reload()
    expect_everything(notebook, 0, expect, path)


@pytest.mark.slow  # tests/server stops a server right after its sessions in every run
def test_file_shut_down_loses_no_notebook_and_a_busy_one_goes_on(
    open_notebook, lab_server, expect, stop
):
    path, count = stop
    busy = open_notebook("busy.ipynb", count, "print(number)").require_engine()
    busy.page.keyboard.press("Control+s")
    lab_server.write_notebook("other.ipynb", "x = 41; print(x)", "print(x + 1)")
    page = busy.page
    other = busy.show("other.ipynb")
    other.run_cell(0, "41")
    kernels = {kernel["id"] for kernel in lab_server.get("api/kernels")}
    busy.show("busy.ipynb")
    busy.start_cell(0)
    expect(busy.cell(0)).to_contain_text(SOME)
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save-all')")

    page.get_by_role("menuitem", name="File", exact=True).click()
    page.get_by_role("menuitem", name="Shut Down", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Shut Down").click()
    expect(page.get_by_role("dialog")).to_contain_text("Server stopped")
    lab_server.restart()
    assert kernels <= {kernel["id"] for kernel in lab_server.get("api/kernels")}

    busy.reload()
    busy.run_cell(1, expect_everything(busy, 0, expect, path))
    busy.show("other.ipynb", until=HAS_KERNEL).run_cell(1, "42")


@pytest.mark.slow
def test_an_open_page_connects_again_by_itself_and_shows_the_rest(
    open_notebook, lab_server, expect, stop
):
    path, count = stop
    notebook = open_notebook("open.ipynb", count, "print(number)").require_engine()
    notebook.start_cell(0)
    expect(notebook.cell(0)).to_contain_text(SOME)
    lab_server.restart()
    # JupyterLab says that it has lost the server; it tries again every now and then.
    dismiss = notebook.page.get_by_role("dialog").get_by_role("button").last
    if dismiss.is_visible():
        dismiss.click()
    notebook.run_cell(1, expect_everything(notebook, 0, expect, path))
