"""The side panel with kernels and snapshots, and what follows from its buttons."""

import os
import re
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.browser.notebook_page import HAS_IDLE_KERNEL

pytestmark = pytest.mark.browser


def choose(notebook, snapshot, entry):
    """Choose an entry of a snapshot's menu."""
    snapshot.get_by_role("button", name=re.compile("^More for")).click()
    label = notebook.page.get_by_text(entry, exact=True)
    notebook.page.locator(".lm-Menu-item").filter(has=label).click()


def dialog(notebook):
    return notebook.page.locator(".jp-Dialog")


def save(notebook, title):
    """Save a snapshot with a title."""
    notebook.press("save as")
    dialog(notebook).get_by_role("textbox").fill(title)
    dialog(notebook).get_by_role("button", name="Save").click()


def clean_up(notebook, expect, goes):
    """Delete all but the last snapshot of each kernel; the dialog must name the one that goes."""
    notebook.sessions.get_by_role("button", name="Clean Up…").click()
    expect(dialog(notebook)).to_contain_text("No snapshot would be deleted.")
    expect(dialog(notebook)).to_contain_text("when its kernel has 3 newer ones.")
    dialog(notebook).get_by_role("checkbox").check()
    expect(dialog(notebook)).to_contain_text("1 snapshot will be deleted, which frees about")
    expect(dialog(notebook)).to_contain_text(goes)
    if folder := os.environ.get("GPUCKPT_SCREENSHOTS"):
        notebook.page.screenshot(path=Path(folder) / "clean-up.png")
    dialog(notebook).get_by_role("button", name="Delete").click()


def test_snapshots_are_listed_described_and_deleted(open_notebook, expect, lab_server):
    # Those of other tests would be cleaned up, too.
    lab_server.delete_snapshots()
    notebook = open_notebook("history.ipynb", "x = list(range(1000))").require_engine()
    notebook.start_cell(0)
    notebook.chip.click()
    expect(notebook.sessions.get_by_role("heading", name="history.ipynb")).to_be_visible()
    save(notebook, "Before")
    snapshots = notebook.snapshots()
    expect(snapshots).to_have_count(1)
    expect(snapshots).to_contain_text("saved")
    expect(snapshots.locator("[role='img']")).to_have_accessible_name(
        re.compile(r".*B on disk \(.*B new\)")
    )
    title = snapshots.locator(".jp-GpuCkptSnapshot-title")
    expect(title).to_have_text("Before")
    expect(snapshots).to_have_attribute("data-pinned", "true")
    expect(snapshots.locator(".jp-GpuCkptVariables")).to_contain_text("x list")

    choose(notebook, snapshots, "Rename…")
    dialog(notebook).get_by_role("textbox").fill("After")
    dialog(notebook).get_by_role("button", name="Rename").click()
    expect(title).to_have_text("After")
    choose(notebook, snapshots, "Edit Note…")
    expect(dialog(notebook).get_by_role("textbox", name="Note")).to_be_focused()
    notebook.page.keyboard.type("two")
    notebook.page.keyboard.press("Enter")
    notebook.page.keyboard.type("lines")
    dialog(notebook).get_by_role("button", name="Save").click()
    expect(snapshots.locator(".jp-GpuCkptSnapshot-note")).to_have_text("two\nlines")
    choose(notebook, snapshots, "Pin")
    expect(snapshots).to_have_attribute("data-pinned", "false")
    choose(notebook, snapshots, "Details")
    expect(dialog(notebook)).to_contain_text("Saved by you")
    dialog(notebook).get_by_role("button", name="Close").click()
    choose(notebook, snapshots, "Verify")
    expect(notebook.toasts.filter(has_text="After is intact")).to_be_visible()
    with notebook.page.expect_download() as download:
        choose(notebook, snapshots, "Export")
    exported = download.value.path()

    choose(notebook, snapshots, "Delete")
    expect(snapshots).to_have_count(0)
    deleted = notebook.toasts.filter(has_text="Deleted the snapshot After")
    deleted.get_by_role("button", name="Undo").click()
    expect(title).to_have_text("After")
    expect(notebook.sessions.locator(".jp-GpuCkptStore")).to_contain_text("history.ipynb")

    # What was exported arrives at the server, which has it already.
    with notebook.page.expect_file_chooser() as chooser:
        notebook.sessions.get_by_role("button", name="Import…").click()
    chooser.value.set_files(exported)
    expect(notebook.toasts.filter(has_text="Importing")).to_contain_text("in the store already")

    notebook.press("save")
    expect(snapshots).to_have_count(2)
    clean_up(notebook, expect, "history.ipynb: After · saved")
    expect(snapshots).to_have_count(1)
    expect(notebook.toasts.filter(has_text="Deleted 1 snapshot: freed")).to_be_visible()


@pytest.mark.slow  # tests/server goes back in every run
def test_going_back_keeps_what_is_now_and_names_changed_files(open_notebook, expect, lab_server):
    cells = [
        'log = open("log.txt", "a"); x = 1; print(x)',
        'x = 2; print("later", file=log, flush=True); print(x)',
        "print(x)",
    ]
    notebook = open_notebook("back.ipynb", *cells).require_engine()
    notebook.run_cell(0, "1")
    notebook.press("save")
    notebook.chip.click()
    snapshots = notebook.snapshots()
    expect(snapshots).to_have_count(1)
    notebook.run_cell(1, "2")

    choose(notebook, snapshots, "Compare Variables with Now")
    expect(dialog(notebook).get_by_role("row", name=re.compile("^x changed"))).to_be_visible()
    dialog(notebook).get_by_role("button", name="Close").click()

    snapshots.get_by_role("button", name="Restore This Snapshot").click()
    expect(dialog(notebook)).to_contain_text(str(lab_server.root_dir / "log.txt"))
    dialog(notebook).get_by_role("button", name="Restore").click()
    expect(notebook.toasts.filter(has_text="Restored back.ipynb")).to_be_visible()
    expect(notebook.chip).to_have_text("Running")
    notebook.run_cell(2, "1")
    # What was is one of its snapshots, and the way back from there.
    expect(snapshots.filter(has_text="before a restore")).to_have_count(1)
    restored = notebook.toasts.filter(has_text="Restored back.ipynb")
    first = restored.element_handle()
    restored.get_by_role("button", name="Undo").click()
    # The click closes the notification while the kernel is not back yet.
    notebook.wait_for("notification => !notification.isConnected", first)
    expect(restored).to_be_visible()
    notebook.run_cell(2, "2")

    notebook.execute("notebook:shutdown-kernel")
    gone = notebook.toasts.filter(has_text="Shut down the kernel of back.ipynb")
    gone.get_by_role("button", name="Undo").click()
    notebook.wait_for(HAS_IDLE_KERNEL)
    notebook.run_cell(2, "2")
    notebook.page.evaluate("() => void window.jupyterapp.commands.execute('kernelmenu:restart')")
    expect(dialog(notebook)).to_contain_text("Its variables are saved in a snapshot first")
    expect(dialog(notebook)).not_to_contain_text("All variables will be lost")
    dialog(notebook).locator(".jp-mod-accept").click()
    again = notebook.toasts.filter(has_text="Restarted the kernel of back.ipynb")
    again.get_by_role("button", name="Undo").click()
    expect(restored).to_have_count(2)
    notebook.run_cell(2, "2")


@pytest.mark.slow  # tests/server makes branches in every run
def test_three_live_branches_go_their_own_ways(open_notebook, expect):
    cells = ["x = [0]; print(x)", "x.append(len(x)); print(x)", "print(x)"]
    first = open_notebook("tree.ipynb", *cells).require_engine()
    first.run_cell(0, "[0]")
    first.press("save")
    first.chip.click()
    snapshots = first.snapshots()
    # Else the cell may run before the snapshot is taken.
    expect(snapshots).to_have_count(1)
    first.run_cell(1, "[0, 1]")
    branches = []
    for number in (1, 2):
        snapshots.last.get_by_role("button", name="Branch").click()
        name = f"tree-branch-{number}.ipynb"
        expect(first.toasts.filter(has_text=f"into {name}")).to_be_visible()
        branches.append(first.show(name))
        # A branch has what the page had, although nobody saved it.
        expect(first.cell(0)).to_contain_text("[0]")
        if number == 1:
            first.show("tree.ipynb")
    second, third = branches
    second.show(second.name)
    second.run_cell(1, "[0, 1]")
    second.run_cell(1, "[0, 1, 2]")
    third.show(third.name)
    third.run_cell(2, "[0]")
    first.show(first.name)
    first.run_cell(2, "[0, 1]")
    second.show(second.name)
    second.run_cell(2, "[0, 1, 2]")
    expect(first.sessions.locator(".jp-GpuCkptKernel").filter(has_text="tree")).to_have_count(3)


def test_a_failed_save_says_why_and_the_kernel_carries_on(open_notebook, expect, tmp_path):
    address = str(tmp_path / "outside")
    with closing(socket.socket(socket.AF_UNIX)) as outside:
        outside.bind(address)
        outside.listen()
        connect = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({address!r})"
        notebook = open_notebook("failing.ipynb", f"{connect}; print('in')", "print(6 * 7)")
        notebook.require_engine().run_cell(0, "in")
        connection, _ = outside.accept()
        notebook.press("save")
        toast = notebook.toasts.filter(has_text="Saving failing.ipynb failed")
        toast.get_by_role("button", name="Details").click()
        expect(dialog(notebook)).to_contain_text("Error code:")
        dialog(notebook).get_by_role("button", name="Close").click()
        expect(notebook.chip).to_have_text("Running")
        notebook.run_cell(1, "42")
        connection.close()


@pytest.mark.slow
def test_two_pages_agree(open_notebook, expect):
    one = open_notebook("two.ipynb", "x = 41; print(x)", "print(x + 1)").require_engine()
    one.run_cell(0, "41")
    other = open_notebook("two.ipynb", tab=True)
    other.execute("gpuckpt:show-sessions")
    expect(other.chip).to_have_text("Running")

    one.press("suspend")
    expect(other.chip).to_have_text("Suspended")
    expect(other.banner).to_be_visible()
    expect(other.main_button).to_have_attribute("data-command", "gpuckpt:resume-kernel")
    expect(other.snapshots()).to_contain_text("resumes from here")
    expect(other.toasts).to_have_count(0)

    other.banner.get_by_role("button", name="Resume").click()
    expect(one.chip).to_have_text("Running")
    expect(one.banner).to_be_hidden()
    expect(other.snapshots()).not_to_contain_text("resumes from here")
    one.run_cell(1, "42")


def test_suspended_kernels_are_among_the_running_ones(open_notebook, expect):
    notebook = open_notebook("asleep.ipynb", "x = 41; print(x)", "print(x + 1)").require_engine()
    notebook.run_cell(0, "41")
    notebook.press("suspend")
    expect(notebook.banner).to_contain_text(
        re.compile("Suspended since .* saved. Resuming takes about .* s")
    )
    # The button above the list of files leads there; other tests may have left suspended kernels, too.
    waiting = notebook.page.locator(".jp-GpuCkptWaiting button")
    expect(waiting).to_have_text(re.compile(r"^Continue asleep\.ipynb$|^\d+ suspended sessions$"))
    expect(waiting).to_have_attribute(
        "title", re.compile(r"^asleep\.ipynb, .*B of memory, about .* s")
    )
    notebook.execute("running:show-panel")
    resume = notebook.page.get_by_role("button", name="Resume asleep.ipynb")
    item = notebook.page.locator(".jp-RunningSessions-item").filter(has=resume)
    expect(item).to_have_count(1)
    # JupyterLab's own list of kernels leaves it out until it runs again.
    kernel = f".jp-RunningSessions [data-context='{notebook.kernel_id()}']"
    others = notebook.page.locator(kernel)
    expect(others).to_have_count(0)
    resume.click()
    expect(item).to_have_count(0)
    expect(notebook.chip).to_have_text("Running")
    expect(others).not_to_have_count(0)
    notebook.run_cell(1, "42")

    notebook.press("suspend")
    item.hover()
    item.locator(".jp-RunningSessions-itemShutdown").click()
    expect(item).to_have_count(0)
    assert notebook.name not in [session["path"] for session in notebook.server.get("api/sessions")]


#: Remembers what a part of the page said, however shortly.
LISTEN = """selector => {
  window.heard = [];
  new MutationObserver(() => {
    const text = document.querySelector(selector)?.textContent;
    if (text && window.heard.at(-1) !== text) window.heard.push(text);
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


def test_an_operation_is_in_the_status_bar_while_it_is_in_flight(open_notebook, expect):
    notebook = open_notebook("status.ipynb", "import os; x = os.urandom(200_000_000)")
    notebook.require_engine()
    notebook.page.evaluate(LISTEN, ".jp-GpuCkptStatus-button")
    # On a slow machine a page may hear of an operation only when it is over.
    for number in range(1, 6):
        notebook.start_cell(0)
        expect(notebook.cell(0).locator(".jp-InputPrompt")).to_have_text(f"[{number}]:")
        notebook.press("save")
        saved = notebook.toasts.filter(has_text="Saved status.ipynb")
        expect(saved).to_have_count(number)
        heard = notebook.page.evaluate("window.heard")
        if any(text.startswith("Saving status.ipynb… Writing to disk") for text in heard):
            break
    else:
        pytest.fail(f"never shown: {heard}")
    expect(notebook.page.locator(".jp-GpuCkptStatus-button")).to_have_count(0)


@pytest.mark.slow
def test_an_open_page_knows_of_suspended_kernels_after_a_restart_of_the_server(
    open_notebook, expect, lab_server
):
    notebook = open_notebook("restart.ipynb", "x = 41; print(x)", "print(x + 1)").require_engine()
    notebook.run_cell(0, "41")
    notebook.chip.click()
    lab_server.restart()
    expect(notebook.banner).to_be_visible(timeout=180_000)
    expect(notebook.snapshots()).to_contain_text("server stopped")
    # JupyterLab says that it has lost the server.
    dismiss = dialog(notebook).get_by_role("button").last
    if dismiss.is_visible():
        dismiss.click()
    notebook.banner.get_by_role("button", name="Resume").click()
    expect(notebook.chip).to_have_text("Running")
    notebook.run_cell(1, "42")
