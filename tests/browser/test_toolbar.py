"""What a user sees and presses in a notebook's toolbar."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.browser.lab_server import environment
from tests.browser.notebook_page import HAS_IDLE_KERNEL, IN_FRONT, complaints_in
from tests.programs import python_module

pytestmark = pytest.mark.browser


#: Whether one part of the page ends above another.
ENDS_ABOVE = """([one, other]) =>
  one.getBoundingClientRect().bottom <= other.getBoundingClientRect().top"""


def processes_of(kernel_id):
    """Return the processes whose command line holds the kernel's connection file, in every PID namespace below ours."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if b"ipykernel_launcher" in command and kernel_id.encode() in command:
            found.append(int(path.parent.name))
    return found


def expect_gone(kernel_id):
    deadline = time.monotonic() + 120
    while processes_of(kernel_id) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(kernel_id) == []


def test_save_says_what_it_did_and_the_kernel_carries_on(open_notebook, expect):
    notebook = open_notebook("save.ipynb", "x = 41; print(x)", "print(x + 1)").require_engine()
    expect(notebook.chip).to_have_text("Running")
    notebook.run_cell(0, "41")
    notebook.expect_enabled("save", "suspend")

    notebook.press("save")
    expect(notebook.toasts).to_contain_text(
        re.compile(r"Saved save\.ipynb: paused .* s · .*B on disk \(.*B new\)")
    )
    expect(notebook.chip).to_have_text("Running")
    notebook.run_cell(1, "42")


def test_suspend_ends_the_process_and_resume_brings_it_back(open_notebook, pages, expect):
    complaints = complaints_in(pages)
    notebook = open_notebook("suspend.ipynb", "x = 41; print(x)", "print(x + 1)").require_engine()
    notebook.run_cell(0, "41")
    kernel_id = notebook.kernel_id()
    assert processes_of(kernel_id)

    # Saving and suspending have buttons of their own.
    notebook.expect_enabled("save", "suspend")
    expect(notebook.main_button).to_have_attribute("data-command", "gpuckpt:save-kernel")
    suspend = f"{IN_FRONT} jp-button[data-command='gpuckpt:suspend-kernel']"
    notebook.page.locator(suspend).click()
    expect(notebook.chip).to_have_text("Suspended")
    expect(notebook.toasts).to_contain_text(
        re.compile(r"Suspended suspend\.ipynb in .* s: freed .*B of RAM · .*B on disk")
    )
    expect(notebook.banner).to_be_visible()
    notebook.expect_enabled("resume")
    expect(notebook.page.locator(suspend)).to_have_count(0)
    expect_gone(kernel_id)

    notebook.press("resume")
    expect(notebook.chip).to_have_text("Running")
    expect(notebook.banner).to_be_hidden()
    notebook.expect_enabled("save", "suspend")
    notebook.run_cell(1, "42")
    assert notebook.kernel_id() == kernel_id

    # A console of the same kernel has the same button, chip and banner.
    notebook.execute("notebook:create-console", insertMode="split-bottom")
    console = notebook.page.locator(".jp-ConsolePanel")
    chip = console.locator(".jp-GpuCkptChip-content")
    expect(chip).to_have_text("Running")
    console.locator(".jp-GpuCkptButton-menu").click()
    notebook.page.get_by_role("menuitem", name="Suspend Kernel", exact=True).click()
    expect(chip).to_have_text("Suspended")
    expect(notebook.chip).to_have_text("Suspended")
    banner = console.locator(".jp-GpuCkptSuspended")
    expect(banner).to_contain_text("Running a cell resumes it.")
    banner.get_by_role("button", name="Resume").click()
    expect(chip).to_have_text("Running")
    expect(banner).to_be_hidden()
    expect(notebook.banner).to_be_hidden()
    # In a console of another kernel the commands of menus and the palette work on that one.
    notebook.execute("console:create", kernelPreference={"name": "python3"})
    notebook.wait_for(HAS_IDLE_KERNEL)
    assert notebook.kernel_id() != kernel_id
    notebook.page.get_by_role("menuitem", name="Kernel", exact=True).click()
    menu = notebook.page.locator(".lm-MenuBar-menu")
    menu.get_by_role("menuitem", name="Suspend Kernel").click()
    expect(chip.last).to_have_text("Suspended")
    expect(notebook.chip).to_have_text("Running")
    notebook.execute("apputils:activate-command-palette")
    notebook.page.keyboard.type("resume kernel")
    notebook.page.keyboard.press("Enter")
    expect(chip.last).to_have_text("Running")
    assert complaints == []


def test_a_reloaded_page_shows_the_suspended_kernel_and_can_resume_it(open_notebook, expect):
    notebook = open_notebook("reload.ipynb", "x = 41; print(x)", "print(x + 1)").require_engine()
    notebook.run_cell(0, "41")
    kernel_id = notebook.kernel_id()
    notebook.press("suspend")
    expect(notebook.chip).to_have_text("Suspended")

    notebook.reload()
    expect(notebook.chip).to_have_text("Suspended")
    # Jupyter's own indicator does not say "Idle".
    expect(notebook.page.locator(".jp-Notebook-ExecutionIndicator").first).to_be_hidden()
    expect(notebook.toasts).to_have_count(0)
    assert notebook.kernel_id() == kernel_id
    expect_gone(kernel_id)

    # At 200 % all of the banner is seen.
    notebook.page.set_viewport_size({"width": 640, "height": 400})
    history = notebook.banner.get_by_role("button", name="History")
    expect(history).to_be_visible()
    notebook.wait_for(ENDS_ABOVE, [history.element_handle(), notebook.cell(0).element_handle()])
    notebook.page.set_viewport_size({"width": 1280, "height": 800})

    notebook.banner.get_by_role("button", name="Resume").click()
    expect(notebook.chip).to_have_text("Running")
    notebook.run_cell(1, "42")


def test_a_kernel_that_is_not_under_the_engine_says_why_it_cannot_be_saved(open_notebook, expect):
    notebook = open_notebook("plain.ipynb", "print(1)", kernel="plain-python")
    expect(notebook.chip).to_have_attribute("data-state", "unmanaged")
    notebook.expect_enabled()
    expect(notebook.main_button).to_have_attribute("aria-disabled", "true")
    why = re.compile(r"This kernel cannot be saved: .+")
    expect(notebook.main_button).to_have_attribute("title", why)
    notebook.menu_button.click()
    for label in ("Save Snapshot", "Suspend Kernel", "Resume Kernel"):
        item = notebook.page.get_by_role("menuitem", name=label, exact=True)
        expect(item.locator(".lm-Menu-itemLabel")).to_have_attribute("title", why)
    notebook.page.keyboard.press("Escape")
    notebook.run_cell(0, "1")


@pytest.mark.slow  # another test does the main job by the keyboard in every run
def test_the_same_by_keyboard_menu_palette_and_file_browser(open_notebook, expect):
    notebook = open_notebook("ways.ipynb", "x = 41; print(x)", "print(x + 1)").require_engine()
    page = notebook.page
    notebook.run_cell(0, "41")
    notebook.expect_enabled("save", "suspend")

    page.keyboard.press("Alt+Shift+S")
    expect(notebook.toasts.filter(has_text="Saved ways.ipynb")).to_be_visible()

    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    menu = page.locator(".lm-MenuBar-menu")
    expect(menu.get_by_role("menuitem", name="Branch into a New Notebook")).to_be_visible()
    menu.get_by_role("menuitem", name="Suspend Kernel").click()
    expect(notebook.chip).to_have_text("Suspended")
    expect(notebook.banner).to_contain_text("Running a cell resumes it.")

    notebook.execute("filebrowser:activate")
    file = page.locator(".jp-DirListing-item", has_text="ways.ipynb")
    expect(file).to_have_attribute("data-gpuckpt", "suspended")
    file.click(button="right")
    menu = page.locator(".lm-Menu")
    expect(menu.get_by_role("menuitem", name="Suspend Kernel")).to_have_count(0)
    menu.get_by_role("menuitem", name="Resume Kernel").click()
    expect(notebook.chip).to_have_text("Running")
    expect(file).to_have_attribute("data-gpuckpt", "running")

    # By the keyboard alone: the button is reached, its menu opened, an entry chosen.
    page.locator(".jp-NotebookPanel-toolbar jp-button").first.focus()
    while not notebook.menu_button.evaluate("button => button === document.activeElement"):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Save Snapshot As…")).to_be_visible()
    page.keyboard.press("Escape")
    expect(notebook.menu_button).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Save Snapshot As…")).to_be_visible()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(notebook.chip).to_have_text("Suspended")

    notebook.execute("apputils:activate-command-palette")
    page.keyboard.type("free gpu")
    expect(page.locator(".lm-CommandPalette-item").first).to_contain_text("Free GPU, Keep in RAM")
    page.keyboard.press("Control+a")
    page.keyboard.type("resume kernel")
    expect(page.locator(".lm-CommandPalette-item").first).to_contain_text("Resume Kernel")
    page.keyboard.press("Enter")
    expect(notebook.chip).to_have_text("Running")
    notebook.run_cell(1, "42")


@pytest.mark.slow
def test_a_button_in_the_toolbar_keeps_the_focus_while_it_is_disabled_and_answers(
    open_notebook, expect
):
    notebook = open_notebook("focus.ipynb", "x = 41; print(x)").require_engine()
    page = notebook.page
    notebook.run_cell(0, "41")
    notebook.expect_enabled("save", "suspend")
    resume = page.locator(f"{IN_FRONT} [data-command='gpuckpt:resume-kernel']")
    suspend = page.locator(f"{IN_FRONT} [data-command='gpuckpt:suspend-kernel']")
    for _ in range(2):
        # JupyterLab 4.2 answers the first focus by activating the notebook: its next message moves the focus to the cells.
        suspend.focus()
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    with notebook.kept_back("**/kernels/*/suspend*"):
        page.keyboard.press("Enter")
        expect(suspend).to_have_attribute("aria-disabled", "true")
        expect(suspend).to_be_focused()
        page.keyboard.press("Space")
        refusal = "Please wait: this kernel is being suspended"
        expect(notebook.toasts.filter(has_text=refusal)).to_be_visible()
    expect(resume).to_be_focused()
    expect(notebook.chip).to_have_text("Suspended")
    page.keyboard.press("Enter")
    expect(notebook.chip).to_have_text("Running")
    expect(suspend).to_be_focused()


@pytest.mark.slow  # the tests of the front end have the same without a server
def test_a_suspend_waits_for_a_save_of_the_notebook_that_has_not_ended(open_notebook, expect):
    notebook = open_notebook("saving.ipynb", "x = 41; print(x)").require_engine()
    page = notebook.page
    notebook.run_cell(0, "41")
    unanswered = []

    def answer_later(route):
        if route.request.method == "PUT":
            unanswered.append((route, route.fetch()))
        else:
            route.continue_()

    page.route("**/api/contents/saving.ipynb*", answer_later)
    with page.expect_request(lambda request: request.method == "PUT"):
        page.keyboard.press("Control+s")
    notebook.press("suspend")
    expect(notebook.toasts.filter(has_text="Suspending saving.ipynb")).to_be_visible()
    # The server has answered by now what another save asks first, and JupyterLab would ask which of both files to keep.
    page.evaluate("async () => { await (await fetch('../../api/status')).text(); }")
    expect(page.locator(".jp-Dialog")).to_have_count(0)
    [(route, response)] = unanswered
    route.fulfill(response=response)
    expect(notebook.chip).to_have_text("Suspended")
    page.unroute("**/api/contents/saving.ipynb*")
    file = notebook.server.root_dir / "saving.ipynb"
    assert '"41\\n"' in file.read_text()


def press_until(page, key, element):
    """Press a key until this element has the focus, a hundred times at most."""
    for _ in range(100):
        if element.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press(key)
    pytest.fail(f"{key} never reaches {element}")


def save_and_press_once_more(notebook):
    """Save by the keyboard. The second press cannot be carried out; it is answered."""
    page, expect, toasts = notebook.page, notebook.expect, notebook.toasts
    with notebook.kept_back("**/kernels/*/save*"):
        page.keyboard.press("Alt+Shift+S")
        notebook.expect_enabled("suspend")
        page.keyboard.press("Alt+Shift+S")
        refusal = "Please wait: this kernel is being saved"
        expect(toasts.filter(has_text=refusal)).to_be_visible()
    expect(toasts.filter(has_text=f"Saved {notebook.name}")).to_be_visible()


def test_the_main_job_is_done_by_the_keyboard_alone_and_the_focus_returns(open_notebook, expect):
    cells = ["x = 41; print(x)", "x = 0; print(x)", "print(x)"]
    notebook = open_notebook("keys.ipynb", *cells).require_engine()
    page = notebook.page
    outputs = [notebook.cell(index).locator(".jp-OutputArea-output") for index in range(3)]

    def expect_focus_in_cells():
        expect(page.locator(f"{IN_FRONT} .jp-Notebook:focus-within")).to_have_count(1)

    expect_focus_in_cells()
    page.keyboard.press("Shift+Enter")
    expect(outputs[0]).to_have_text("41")
    notebook.expect_enabled("save", "suspend")
    save_and_press_once_more(notebook)
    page.keyboard.press("Shift+Enter")
    expect(outputs[1]).to_have_text("0")
    notebook.expect_enabled("save", "suspend")
    # The page shows the new state before the server has replied to the request that led there. A press counts from then on.
    with notebook.kept_back("**/api/gpuckpt/operations/*"):
        page.keyboard.press("Alt+Shift+U")
        expect(notebook.chip).to_have_text("Suspended")
        expect_focus_in_cells()

        resume = notebook.banner.get_by_role("button", name="Resume")
        press_until(page, "Shift+Tab", resume)
        page.keyboard.press("Enter")
        expect(notebook.chip).to_have_text("Running")
        expect_focus_in_cells()
        notebook.expect_enabled("save", "suspend")

    page.keyboard.press("Alt+Shift+H")
    expect(notebook.sessions.get_by_role("button", name="keys.ipynb", exact=True)).to_be_focused()
    saved = notebook.snapshots().filter(has_text="After [1]")
    restore = saved.get_by_role("button", name="Restore This Snapshot")
    press_until(page, "Tab", restore)
    page.keyboard.press("Enter")
    dialog = page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("Restore After [1]")
    expect(dialog.locator(".jp-mod-accept")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(restore).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog.locator(".jp-mod-accept")).to_be_focused()
    page.keyboard.press("Enter")
    restored = notebook.toasts.filter(has_text="Restored keys.ipynb to After [1]")
    expect(restored).to_be_visible()
    expect(restore).to_be_focused()
    page.keyboard.press("Escape")
    expect_focus_in_cells()
    # The restore has put cells back, so another cell may be the active one.
    for _ in cells:
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+Enter")
    expect(outputs[2]).to_have_text("41")


def test_a_notice_that_the_machine_goes_counts_down_above_the_notebook(
    lab_server, open_notebook, expect
):
    def notice(*words):
        environ = environment(lab_server.folder, lab_server.runtime_dir)
        command = [*python_module("jupyter_gpuckpt.cli"), "notice", *words]
        subprocess.run(command, env=environ, check=True, stdin=subprocess.DEVNULL)

    notebook = open_notebook("notice.ipynb", "1").require_engine()
    banner = notebook.page.locator(f"{IN_FRONT} .jp-GpuCkptNotice")
    expect(banner).to_be_hidden()
    # So early that no kernel is suspended yet.
    notice("--within", "100000s", "--no-wait")
    try:
        expect(banner).to_contain_text("This machine will be shut down in 27:4")
        expect(banner).to_contain_text("only what is uploaded to a remote survives")
        assert banner.bounding_box()["height"] > 20
        before = banner.inner_text()
        expect(banner).not_to_have_text(before)
        if folder := os.environ.get("GPUCKPT_SCREENSHOTS"):
            notebook.page.screenshot(path=Path(folder) / "notice.png")
    finally:
        notice("--withdraw")
    expect(banner).to_be_hidden()
