"""The cells and outputs in a snapshot come back with the kernel, in place."""

import json
import re

import pytest

pytestmark = pytest.mark.browser

#: An output that nobody has signed. As a trusted one it would run the script.
UNSAFE = {
    "output_type": "display_data",
    "data": {"text/html": "<b>unsafe</b><img src='x:' onerror='window.ran = true'>"},
    "metadata": {},
}


def test_cells_and_outputs_come_back_with_the_kernel_as_one_undo_step(
    open_notebook, expect, lab_server
):
    lab_server.write_notebook("cells.ipynb", "'the output'", "x = 1; print(x)", "print(x)", "0")
    path = lab_server.root_dir / "cells.ipynb"
    content = json.loads(path.read_text())
    content["cells"][0]["outputs"] = [UNSAFE]
    path.write_text(json.dumps(content))
    notebook = open_notebook("cells.ipynb").require_engine()
    page, dialog = notebook.page, notebook.page.locator(".jp-Dialog")
    notebook.run_cell(1, "1")
    # The notebook has unsaved changes, which are part of the snapshot.
    notebook.press("save")
    notebook.chip.click()
    expect(notebook.snapshots()).to_have_count(1)
    assert page.evaluate("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")

    notebook.cell(1).locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.type("x = 2; print('changed')")
    notebook.run_cell(1, "changed")
    notebook.run_cell(0, "'the output'")
    notebook.execute("notebook:insert-cell-below")
    expect(notebook.cell(4)).to_be_visible()

    notebook.snapshots().get_by_role("button", name="Restore This Snapshot").click()
    expect(dialog).to_contain_text(
        "1 cell is removed. 2 cells change. You can undo that in the notebook."
    )
    expect(dialog.get_by_label("Restore cells and outputs too")).to_be_checked()
    dialog.get_by_role("button", name="Restore", exact=True).click()
    restored = notebook.toasts.filter(has_text="Restored cells.ipynb")
    expect(restored).to_be_visible()
    expect(notebook.cell(1).locator(".jp-OutputArea-output")).to_have_text("1")
    expect(notebook.cell(1).locator(".cm-content")).to_have_text("x = 1; print(x)")
    expect(notebook.cell(1).locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[1\]"))
    expect(notebook.cell(0).locator("b")).to_have_text("unsafe")
    expect(notebook.cell(4)).to_have_count(0)
    assert not page.evaluate("() => window.ran")

    notebook.execute("notebook:undo-cell-action")
    expect(notebook.cell(1).locator(".cm-content")).to_have_text("x = 2; print('changed')")
    expect(notebook.cell(1).locator(".jp-OutputArea-output")).to_have_text("changed")
    expect(notebook.cell(0).locator(".jp-OutputArea-output")).to_have_text("'the output'")
    expect(notebook.cell(4)).to_be_visible()
    notebook.execute("notebook:redo-cell-action")
    expect(notebook.cell(1).locator(".cm-content")).to_have_text("x = 1; print(x)")

    notebook.run_cell(2, "1")

    restored.get_by_role("button", name="Undo").click()
    expect(notebook.cell(1).locator(".cm-content")).to_have_text("x = 2; print('changed')")
