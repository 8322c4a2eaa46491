"""A session goes by a remote from one machine to another, as its user sees it in the panel."""

import os
import re
import secrets
import uuid
from contextlib import ExitStack, contextmanager

import msgspec
import pytest

from jupyter_gpuckpt.daemon.remotes import remote_keys
from jupyter_gpuckpt.remote.remote_list import Remotes
from jupyter_gpuckpt.remote.remote_sessions import Sessions
from tests.browser.lab_server import started_lab
from tests.browser.notebook_page import HAS_IDLE_KERNEL, NotebookPage, complaints_in
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
def folders(tmp_path):
    """Two folders, one for each machine."""
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    return one, other


@contextmanager
def labs_on_machines(one, other):
    """Two JupyterLab servers on machines of their own."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(started_lab(folder, on_machine(folder, away)))
            for folder, away in ((one, other), (other, one))
        ]
        for server in started:
            server.wait_until_up()
        yield started


@pytest.fixture
def machines(folders, pytestconfig, monkeypatch):
    """Two JupyterLab servers on machines of their own, and a bucket that both can open."""
    one, other = folders
    for name, value in servers.s3_variables().items():
        monkeypatch.setenv(name, value)
    remote = servers.s3_remote(shared_servers.seaweedfs(pytestconfig), f"p{secrets.token_hex(6)}")
    remote = msgspec.structs.replace(remote, name="share")
    joined = join(one / "gpuckpt", remote)
    join(other / "gpuckpt", remote, joined.line)
    with labs_on_machines(one, other) as started:
        yield started


class AddDialog:
    """The dialog that adds a remote."""

    def __init__(self, page, expect):
        self.page, self.expect = page, expect
        self.node = page.locator(".jp-Dialog")

    def enter(self, **texts):
        """Enter texts in fields, by the beginnings of their labels."""
        for label, text in texts.items():
            self.node.get_by_label(re.compile(f"^{label}")).fill(text)

    def choose(self, label):
        self.node.get_by_label(label).check()

    def press(self, label, told=""):
        """Press a button; it says so."""
        self.node.get_by_role("button", name=label, exact=True).click()
        if told:
            self.expect(self.node.locator(".jp-GpuCkptForm-told")).to_contain_text(told)

    def line(self):
        """Return the line that is shown, and confirm that it is kept."""
        shown = self.node.locator(".jp-GpuCkptLine")
        self.expect(shown).to_be_visible()
        self.page.keyboard.press("Escape")
        line = shown.inner_text()
        shot(self.page, "line")
        self.press("I Have Kept It")
        return line


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
    expect(badge).to_have_attribute("title", "Uploaded to “share”.")
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
    is_fetched(here, expect, "Fetch and Resume", "Keep These Cells")
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


def is_fetched(page, expect, button, answer):
    """Press a button of the dialog about a fetch, and answer whether the notebook that was here before gets the session's cells."""
    page.page.locator(".jp-Dialog").get_by_role("button", name=button, exact=True).click()
    expect(page.toasts.filter(has_text=f"Fetched {NOTEBOOK}")).to_be_visible()
    dialog = page.page.locator(".jp-Dialog", has_text="The notebook on this machine differs")
    dialog.get_by_role("button", name=answer, exact=True).click()
    expect(page.toasts.filter(has_text=f"Resumed {NOTEBOOK}")).to_be_visible()


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
    expect(dialog).to_contain_text("Remote: “share”")
    shot(there.page, "move-dialog")
    dialog.get_by_role("button", name="Move", exact=True).click()
    done = there.toasts.filter(has_text="It is safe to close this machine.")
    expect(done).to_be_visible(timeout=200_000)
    expect(there.chip).to_have_text("Moved")
    banner = there.page.locator(".jp-GpuCkptSuspended")
    expect(banner).to_contain_text("Moved to “share”, from where another machine can continue it.")
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
    is_fetched(here, expect, "Fetch and Resume", "Replace")
    here.wait_for(HAS_IDLE_KERNEL)
    expect(here.cell(0)).to_contain_text("x = 41; print(x)")
    write_cell(here, "print(x + 1)")
    here.run_cell(0, "42")

    # The first machine's user is warned before it takes the session over, and does not want that.
    there.press("resume")
    dialog = there.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("runs on machine")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    shot(there.page, "take-over")
    dialog.get_by_role("button", name="Cancel").click()
    expect(banner).to_contain_text(re.compile(r"Moved: it runs on .+ now\."))
    expect(banner).not_to_contain_text("Resume brings it back here.")

    comes_back(here, there, expect)
    assert sorted(path.name for path in one.root_dir.glob("*.ipynb")) == ["later.ipynb", NOTEBOOK]


def write_cell(page, source):
    """Replace the text of the first cell."""
    page.cell(0).locator(".cm-content").click()
    page.page.keyboard.press("Control+a")
    page.page.keyboard.type(source)


def comes_back(here, there, expect):
    """Move a session back into its kernel and its notebook, which gets the cells of the other machine."""
    write_cell(here, "x = x + 1; print(x)")
    here.run_cell(0, "42")
    here.press("move")
    here.page.locator(".jp-Dialog").get_by_role("button", name="Move", exact=True).click()
    done = here.toasts.filter(has_text=f"Moved {NOTEBOOK} with warnings.")
    expect(done).to_be_visible(timeout=200_000)
    banner = there.page.locator(".jp-GpuCkptSuspended")
    expect(banner).to_contain_text(re.compile(r"Moved: .+ has gone on with it\."))
    there.press("resume")
    dialog = there.page.locator(".jp-Dialog")
    expect(dialog).to_contain_text(f"It goes on in {NOTEBOOK}, whose kernel is suspended here.")
    shot(there.page, "fetch-back")
    dialog.get_by_role("button", name="Fetch and Resume", exact=True).click()
    expect(there.toasts.filter(has_text=f"Resumed {NOTEBOOK}")).to_be_visible()
    expect(there.toasts.filter(has_text="has the cells of the other machine now")).to_be_visible()
    there.wait_for(HAS_IDLE_KERNEL)
    expect(there.cell(0)).to_contain_text("x = x + 1; print(x)")
    shot(there.page, "back")
    there.run_cell(0, "43")
    expect(there.chip).to_have_text("Running")


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
    expect(dialog).to_contain_text("now, since")
    expect(dialog).to_contain_text("The kernel on")
    shot(here.page, "take-over-to-fetch")
    is_fetched(here, expect, "Take Over and Resume", "Keep These Cells")
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


@pytest.mark.slow
def test_a_remote_is_added_where_a_move_needs_one_and_joined_on_the_other_machine(
    folders, tmp_path, context, expect
):
    with labs_on_machines(*folders) as (one, other):
        one.write_notebook(NOTEBOOK, "x = 41; print(x)")
        there = NotebookPage(context.new_page(), expect, one, NOTEBOOK).open().require_engine()
        complaints = complaints_in(context)
        there.run_cell(0, "41")
        there.press("move")
        dialog = AddDialog(there.page, expect)
        dialog.press("Test", "Enter the path of the folder")
        dialog.enter(Folder=f"{tmp_path}/our share")
        dialog.press("Test", "It works: a new store can be created there.")
        shot(there.page, "add-folder")
        dialog.press("Add")
        line = dialog.line()
        assert line.startswith(f"file://{tmp_path}/our%20share ")
        expect(dialog.node).to_contain_text("Remote: “our-share”")
        shot(there.page, "move-after-adding")
        dialog.press("Move")
        done = there.toasts.filter(has_text="It is safe to close this machine.")
        expect(done).to_be_visible(timeout=200_000)
        there.page.locator("[data-id='jp-gpuckpt-sessions']").click()
        expect(there.sessions).to_contain_text("All sessions in the remotes are on this machine.")
        shot(there.page, "disk-use")
        assert line not in there.page.content()

        other.write_notebook(NOTEBOOK, "print(x + 1)")
        here = NotebookPage(context.new_page(), expect, other, NOTEBOOK).open_lab()
        here.page.locator("[data-id='jp-gpuckpt-sessions']").click()
        shot(here.page, "no-remote")
        here.sessions.get_by_role("button", name="Add Remote…").click()
        dialog = AddDialog(here.page, expect)
        dialog.choose("Join one that another machine uses")
        dialog.enter(Line=line)
        dialog.press("Test", "It works: there is a store that can be joined.")
        shot(here.page, "join")
        dialog.press("Add")
        item = here.sessions.locator(f"[data-path='{NOTEBOOK}']")
        item.get_by_role("button", name="Fetch and Resume…").click()
        expect(dialog.node).to_contain_text("It runs nowhere now. It was last saved on")
        shot(here.page, "fetch-dialog")
        is_fetched(here, expect, "Fetch and Resume", "Keep These Cells")
        here.wait_for(HAS_IDLE_KERNEL)
        here.run_cell(0, "42")
        assert complaints == []


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Return a profile of the AWS tools: no other place of the server has the keys."""
    file = tmp_path / "credentials"
    keys = f"aws_access_key_id={servers.ACCESS_KEY}\naws_secret_access_key={servers.SECRET_KEY}\n"
    file.write_text(f"[tests]\n{keys}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    return "tests"


@pytest.mark.slow
def test_a_bucket_is_tested_before_it_becomes_a_remote(
    folders, tmp_path, pytestconfig, profile, context, expect
):
    endpoint = shared_servers.seaweedfs(pytestconfig)
    (tmp_path / "careless").mkdir()
    with started_lab(folders[0]) as lab, servers.rclone(tmp_path / "careless") as careless:
        lab.wait_until_up()
        here = NotebookPage(context.new_page(), expect, lab, NOTEBOOK).open_lab()
        here.page.locator("[data-id='jp-gpuckpt-sessions']").click()
        here.sessions.get_by_role("button", name="Add Remote…").click()
        dialog = AddDialog(here.page, expect)
        dialog.choose("Amazon S3 or compatible")
        dialog.press("Test", "Enter the name of the bucket.")
        dialog.enter(Bucket="nowhere", Prefix="ours", Region="us-east-1", Endpoint=endpoint)
        dialog.press("Test", "denies access")
        shot(here.page, "no-credentials")
        dialog.enter(Profile="nobody")
        dialog.press("Test", "has no credentials for the profile nobody")
        dialog.enter(Profile=profile, Bucket=servers.BUCKET, Endpoint=careless)
        dialog.press("Test", "It cannot be used: it ignores the condition not to overwrite")
        shot(here.page, "careless")
        dialog.enter(Endpoint=endpoint)
        dialog.press("Test", "It works: a new store can be created there.")
        shot(here.page, "add-bucket")
        dialog.press("Add")
        line = dialog.line()
        assert line.startswith(f"s3://{servers.BUCKET}/ours ")
        expect(here.sessions).to_contain_text("All sessions in the remotes are on this machine.")
        here.sessions.get_by_role("button", name="Join Line of “ours”…").click()
        dialog.press("Make the Line")
        assert dialog.line() != line
        # No store is made where one is.
        here.sessions.get_by_role("button", name="Add Remote…").click()
        dialog.choose("Amazon S3 or compatible")
        dialog.enter(Bucket=servers.BUCKET, Prefix="ours", Region="us-east-1", Endpoint=endpoint)
        dialog.enter(Profile=profile, Name="again")
        dialog.press("Test", "There is a store already. Join it")
        dialog.press("Add", "nothing was changed")
        shot(here.page, "store-is-there")
        dialog.choose("Join one that another machine uses")
        dialog.enter(Line=f"s3://{servers.BUCKET}/ours of another machine")
        dialog.press("Add", "This is not a line that joins a remote")
        shot(here.page, "mistyped-line")
        expect(dialog.node).not_to_contain_text("jupyter gpuckpt")
        dialog.press("Cancel")
