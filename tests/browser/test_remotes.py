"""A session goes by a remote from one machine to another, as its user sees it in the panel."""

import os
import re
import secrets
import uuid
from contextlib import ExitStack

import msgspec
import pytest

from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.remote.remote_list import Remotes
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from tests.browser.lab_server import started_lab
from tests.browser.notebook_page import HAS_IDLE_KERNEL, NotebookPage
from tests.conftest import wait_for
from tests.remote import servers, shared_servers
from tests.remote.joined import join

pytestmark = pytest.mark.browser

NOTEBOOK = "thesis.ipynb"

#: A cell that runs until it finds a file beside the notebook.
LONG = """
import os, time
print("before")
while not os.path.exists("end"): time.sleep(0.01)
print("after")
"""

#: Run a command on a machine of its own: NAME BOOT FOLDER OTHER COMMAND... It has another host name and another boot id (the file
#: BOOT), and where the other machine's disk is (OTHER) it finds its own (FOLDER).
MACHINE = """
hostname "$1" && mount --bind "$2" /proc/sys/kernel/random/boot_id && mount --bind "$3" "$4" && shift 4 && exec "$@"
"""


def on_machine(folder, other):
    """Return the words before a command that run it on a machine with the name of its folder; none for an ordinary user."""
    if os.geteuid():
        return []
    boot = folder.with_name(f"{folder.name}-boot")
    boot.write_text(f"{uuid.uuid4()}\n")
    return [
        "unshare",
        "--uts",
        "--mount",
        "sh",
        "-c",
        MACHINE,
        "sh",
        folder.name,
        boot,
        folder,
        other,
    ]


@pytest.fixture
def machines(tmp_path, pytestconfig, monkeypatch):
    """Two JupyterLab servers on machines of their own, and a bucket that both can open."""
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    for name, value in servers.s3_variables().items():
        monkeypatch.setenv(name, value)
    remote = servers.s3_remote(shared_servers.seaweedfs(pytestconfig), f"p{secrets.token_hex(6)}")
    remote = msgspec.structs.replace(remote, name="share")
    with ExitStack() as stack:
        joined = join(one / "gpuckpt", remote)
        join(other / "gpuckpt", remote, joined.line)
        started = [
            stack.enter_context(started_lab(folder, on_machine(folder, away)))
            for folder, away in ((one, other), (other, one))
        ]
        for server in started:
            server.wait_until_up()
        yield started


def take_over_dialog(page, expect):
    """Press the button of the dialog that asks whether a session is taken over."""
    dialog = page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("Taking over does not stop it there")
    return dialog.get_by_role("button", name="Take Over")


def are_leased(data_dir):
    """Return whether a machine has a lease of a session in the remote."""
    opened = remote_keys.opened(data_dir, Remotes(data_dir).get("share"))
    sessions = Sessions(opened.bucket, opened.key.seal, opened.seen)
    return any(sessions.get(one).lease for one in sessions.ids())


def test_a_session_is_uploaded_and_goes_on_elsewhere_in_the_middle_of_a_cell(
    machines, context, expect
):
    one, other = machines
    one.write_notebook(NOTEBOOK, "x = 41; print(x)", LONG)
    there = NotebookPage(context.new_page(), expect, one, NOTEBOOK).open().require_engine()
    there.run_cell(0, "41")
    there.run_cell(1, "before")
    there.chip.click()
    there.press("suspend")
    badge = there.snapshots().locator("[data-upload='uploaded']")
    # Uploads get what nobody else wants of the processor.
    expect(badge).to_have_text("uploaded", timeout=200_000)
    expect(badge).to_have_attribute("title", "Uploaded to share.")
    # What this machine has is not offered to it.
    expect(there.sessions).to_contain_text("All sessions in the remotes are on this machine.")
    there.page.close()
    # Of a kernel that runs elsewhere nothing is fetched: its machine has a lease, which it gives back after the upload.
    wait_for(lambda: not are_leased(one.folder / "gpuckpt"))
    one.end_without_goodbye()

    other.write_notebook(NOTEBOOK, "print(x + 1)", LONG)
    here = NotebookPage(context.new_page(), expect, other, NOTEBOOK).open_lab()
    here.page.locator("[data-id='jp-gpuckpt-sessions']").click()
    item = here.sessions.locator(f"[data-path='{NOTEBOOK}']")
    expect(item).to_contain_text(re.compile(r"thesis\.ipynb.*\d [MG]B.*share"))
    if not os.geteuid():
        expect(item).to_contain_text(one.folder.name)
    item.get_by_role("button", name="Fetch and Resume…").click()
    dialog = here.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text(re.compile(r"[MG]B to download\."))
    dialog.get_by_role("button", name="Fetch and Resume", exact=True).click()
    expect(here.toasts.filter(has_text=f"Fetched {NOTEBOOK}")).to_be_visible()
    expect(here.toasts.filter(has_text=f"Resumed {NOTEBOOK}")).to_be_visible()
    expect(item).to_have_count(0)
    # The page, which has never seen the cell run, shows all that it says.
    output = here.cell(1).locator(".jp-OutputArea-output").last
    expect(output).to_have_text("before")
    for machine in machines:
        (machine.root_dir / "end").touch()
    expect(output).to_have_text(re.compile(r"^before\s+after\s*$"))
    here.wait_for(HAS_IDLE_KERNEL)
    here.run_cell(0, "42")
    expect(here.chip).to_have_text("Running")


def shot(page, name):
    """Keep a picture of a page, where that is wanted."""
    if folder := os.environ.get("GPUCKPT_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png")


@pytest.mark.slow
def test_a_session_is_moved_and_the_other_machine_offers_it_first(machines, context, expect):
    one, other = machines
    one.write_notebook(NOTEBOOK, "x = 41; print(x)")
    one.write_notebook("later.ipynb", "print('later')")
    there = NotebookPage(context.new_page(), expect, one, NOTEBOOK).open().require_engine()
    there.run_cell(0, "41")
    there.press("move")
    dialog = there.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("Remote: share")
    shot(there.page, "move-dialog")
    dialog.get_by_role("button", name="Move", exact=True).click()
    done = there.toasts.filter(has_text="It is safe to close this machine.")
    expect(done).to_be_visible(timeout=200_000)
    expect(there.chip).to_have_text("Suspended")
    shot(there.page, "moved")
    assert not are_leased(one.folder / "gpuckpt")
    # Another session is suspended and uploaded later, as it happens to all when a server stops.
    later = NotebookPage(context.new_page(), expect, one, "later.ipynb").open()
    later.run_cell(0, "later")
    later.chip.click()
    later.press("suspend")
    badge = later.snapshots().locator("[data-upload='uploaded']")
    expect(badge).to_have_text("uploaded", timeout=200_000)
    wait_for(lambda: not are_leased(one.folder / "gpuckpt"))

    # The notebook of the other session is there, and in front.
    other.write_notebook("later.ipynb", "print('later')")
    other.write_notebook(NOTEBOOK, "print(x + 1)")
    here = NotebookPage(context.new_page(), expect, other, "later.ipynb").open()
    here.page.locator("[data-id='jp-gpuckpt-sessions']").click()
    offered = here.sessions.locator(".jp-GpuCkptRemote li.jp-GpuCkptKernel")
    expect(offered).to_have_count(2)
    expect(offered.first).to_have_attribute("data-path", NOTEBOOK)
    expect(offered.first).to_contain_text("moved")
    shot(here.page, "moved-here")
    offered.first.get_by_role("button", name="Fetch and Resume…").click()
    dialog = here.page.locator(".jp-Dialog")
    dialog.get_by_role("button", name="Fetch and Resume", exact=True).click()
    expect(here.toasts.filter(has_text=f"Resumed {NOTEBOOK}")).to_be_visible()
    here.wait_for(HAS_IDLE_KERNEL)
    here.run_cell(0, "42")

    # Back on the first machine, whose user is warned before it takes the session over.
    there.press("resume")
    dialog = there.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("runs on machine")
    shot(there.page, "take-over")
    dialog.get_by_role("button", name="Take Over").click()
    expect(there.toasts.filter(has_text=f"Resumed {NOTEBOOK}")).to_be_visible()
    there.wait_for(HAS_IDLE_KERNEL)
    there.run_cell(0, "41")


@pytest.mark.slow
def test_a_session_that_runs_elsewhere_is_taken_over_and_the_other_page_saves_nothing(
    machines, context, expect
):
    one, other = machines
    one.write_notebook(NOTEBOOK, "x = 41; print(x)")
    there = NotebookPage(context.new_page(), expect, one, NOTEBOOK).open().require_engine()
    there.run_cell(0, "41")
    there.execute("docmanager:save")
    there.chip.click()
    there.press("save")
    expect(there.snapshots().locator("[data-upload='uploaded']")).to_be_visible(timeout=200_000)
    wait_for(lambda: are_leased(one.folder / "gpuckpt"))

    other.write_notebook(NOTEBOOK, "print(x + 1)")
    here = NotebookPage(context.new_page(), expect, other, NOTEBOOK).open_lab()
    here.page.locator("[data-id='jp-gpuckpt-sessions']").click()
    item = here.sessions.locator(f"[data-path='{NOTEBOOK}']")
    item.get_by_role("button", name="Fetch and Resume…").click()
    dialog = here.page.locator(".jp-Dialog")
    dialog.get_by_role("button", name="Fetch and Resume", exact=True).click()
    take_over_dialog(here.page, expect).click()
    expect(here.toasts.filter(has_text=f"Resumed {NOTEBOOK}")).to_be_visible()
    here.wait_for(HAS_IDLE_KERNEL)
    here.run_cell(0, "42")

    # The page there learns it with the next heartbeat.
    keep = there.page.get_by_role("button", name="Keep Saving Here")
    expect(keep).to_be_visible()
    shot(there.page, "lost-session")
    file = one.root_dir / NOTEBOOK
    before = file.read_text()
    there.cell(0).locator(".cm-content").click()
    there.page.keyboard.type("y = 1; ")
    there.execute("docmanager:save")
    expect(there.toasts.filter(has_text="is not saved")).to_be_visible()
    assert file.read_text() == before
    # Neither a page that is opened later nor a server that is started later forgets it.
    there.page.on("dialog", lambda dialog: dialog.accept())
    for once_more in (there.reload, one.restart):
        once_more()
        there.reload()
        expect(keep).to_be_visible()
        there.cell(0).locator(".cm-content").click()
        there.page.keyboard.type("y = 1; ")
        there.execute("docmanager:save")
        expect(there.toasts.filter(has_text="is not saved")).to_be_visible()
        assert file.read_text() == before
    goes_on_in_a_copy(there, keep, file, expect)
    # Another kernel of the notebook is warned, until its user chooses.
    there.open()
    expect(keep).to_be_visible()
    keep.click()
    expect(keep).to_be_hidden()
    there.cell(0).locator(".cm-content").click()
    there.page.keyboard.type("z = 1; ")
    there.execute("docmanager:save")
    wait_for(lambda: "z = 1" in file.read_text())


def goes_on_in_a_copy(there, keep, file, expect):
    """Choose that a page goes on in a copy, with its kernel; the notebook stays as it is."""
    before = file.read_text()
    there.page.get_by_role("button", name="Save as a Copy…").click()
    shot(there.page, "save-as-a-copy")
    there.page.locator(".jp-Dialog").get_by_role("button", name="Save", exact=True).click()
    expect(keep).to_be_hidden()
    copy = file.with_name(f"{file.stem}-copy.ipynb")
    wait_for(lambda: copy.exists() and "y = 1" in copy.read_text())
    there.cell(0).locator(".cm-content").click()
    there.page.keyboard.press("Control+a")
    there.page.keyboard.type("print(x + 1)")
    there.run_cell(0, "42")
    there.execute("docmanager:save")
    wait_for(lambda: "print(x + 1)" in copy.read_text())
    assert file.read_text() == before
