"""A notebook in the browser: the little that the tests do with it."""

import re
from contextlib import contextmanager

from tests.conftest import missing

#: Where JupyterLab shows a notebook.
LAB = "lab/tree"

#: Whether the current notebook has a kernel that is ready for cells. The page's own indicator says idle before that.
HAS_IDLE_KERNEL = """() => {
  const context = window.jupyterapp.shell.currentWidget?.sessionContext;
  return context?.isReady && context.session?.kernel?.status === 'idle';
}"""

#: Whether the current notebook has a kernel at all.
HAS_KERNEL = "() => window.jupyterapp.shell.currentWidget?.sessionContext.session?.kernel"

#: Whether a command is enabled for the current notebook.
IS_ENABLED = "id => window.jupyterapp.commands.isEnabled(id)"

#: The notebook in front. JupyterLab hides the others by a class, since 4.7 by a style as well.
IN_FRONT = ".jp-NotebookPanel:not(.lm-mod-hidden, [style*='content-visibility: hidden'])"

#: What can be done to a kernel: the command, and its name in the menu of the toolbar's button.
ACTIONS = {
    "save": ("gpuckpt:save-kernel", "Save Snapshot"),
    "save as": ("gpuckpt:save-kernel-as", "Save Snapshot As…"),
    "suspend": ("gpuckpt:suspend-kernel", "Suspend Kernel"),
    "resume": ("gpuckpt:resume-kernel", "Resume Kernel"),
    "park": ("gpuckpt:park-kernel", "Park Kernel (Free GPU, Keep in RAM)"),
    "branch": ("gpuckpt:branch-kernel", "Branch into a New Notebook"),
    "move": ("gpuckpt:move-kernel", "Move to Another Machine…"),
    "history": ("gpuckpt:show-history", "Snapshot History"),
}


#: Webpack warns of a pre-release of JupyterLab, because by the rules of npm's versions ^4.2.0 does not match 4.7.0-alpha.2. It uses it.
_IS_OF_PRE_RELEASE = re.compile(
    r"(Unsatisfied version [\d.]+-(alpha|beta|rc)\.\d+ from CORE_FEDERATION"
    r"|No satisfying version .*\nAvailable versions: [\d.]+-(alpha|beta|rc)\.\d+ from CORE_FEDERATION)"
)


def complaints_in(pages):
    """Return a list that collects the errors and warnings that a page, or a context's, log because of this extension or its requests."""
    found = []

    def note(message):
        said = f"{message.type}: {message.text} ({message.location['url']})"
        is_expected = message.type == "warning" and _IS_OF_PRE_RELEASE.search(message.text)
        if message.type in ("error", "warning") and "gpuckpt" in said and not is_expected:
            found.append(said)

    pages.on("console", note)
    return found


#: Milliseconds between two looks at a condition. Playwright would look before each frame, and have the page draw sixty in a second.
POLLING = 100


class NotebookPage:
    """One notebook, open in the browser."""

    def __init__(self, page, expect, server, name, *, place=LAB):
        self.page = page
        self.expect = expect
        self.server = server
        self.name = name
        self.place = place
        #: The state chip in the toolbar.
        self.chip = page.locator(f"{IN_FRONT} .jp-GpuCkptChip-content")
        #: The notice above the cells.
        self.banner = page.locator(f"{IN_FRONT} .jp-GpuCkptSuspended")
        #: The toolbar's button: its main part, and the one that opens the menu.
        button = page.locator(f"{IN_FRONT} .jp-GpuCkptButton jp-button")
        self.main_button, self.menu_button = button.first, button.last
        #: Notifications on the screen.
        self.toasts = page.locator(".Toastify__toast")
        #: The side panel with the kernels and their snapshots.
        self.sessions = page.locator(".jp-GpuCkptSessions")

    def open(self, *, until=HAS_IDLE_KERNEL):
        """Load the page."""
        self._load(f"{self.place}/{self.name}")
        self.page.wait_for_selector(f"{IN_FRONT} .jp-Notebook")
        self.wait_for(until)
        return self

    def open_lab(self):
        """Load JupyterLab without the notebook."""
        self._load("lab")
        return self

    def _load(self, place):
        self.page.goto(f"{self.server.url}/{place}?token={self.server.token}&reset")
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def reload(self):
        """Load the page again, whether or not the kernel is able to answer."""
        return self.open(until=HAS_KERNEL)

    def wait_for(self, condition, argument=None):
        """Wait until a function of JavaScript returns what counts as true in the page."""
        self.page.wait_for_function(condition, arg=argument, polling=POLLING)

    def cell(self, index):
        return self.page.locator(f"{IN_FRONT} .jp-CodeCell").nth(index)

    def start_cell(self, index):
        """Run a cell."""
        self.cell(index).locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def run_cell(self, index, output):
        """Run a cell; returns when its output reads `output`."""
        self.start_cell(index)
        self.expect(self.cell(index).locator(".jp-OutputArea-output").last).to_have_text(output)

    def output(self, index):
        """All that a cell shows as its output."""
        return "".join(self.cell(index).locator(".jp-OutputArea-output").all_inner_texts())

    def press(self, action):
        """Choose an action from the menu of the toolbar's button, as soon as it is enabled."""
        command, label = ACTIONS[action]
        self.wait_for(IS_ENABLED, command)
        self.menu_button.click()
        self.page.get_by_role("menuitem", name=label, exact=True).click()

    def expect_enabled(self, *actions):
        """Of saving, suspending and resuming exactly these are, or become, possible."""
        for action in ("save", "suspend", "resume"):
            enabled = "true" if action in actions else "false"
            self.wait_for(
                f"id => window.jupyterapp.commands.isEnabled(id) === {enabled}", ACTIONS[action][0]
            )

    @contextmanager
    def kept_back(self, pattern):
        """Hold back requests whose URL matches until the end of the block, as if the server were slow; yield those held back."""
        waiting, is_over = [], False

        def handle(route):
            if is_over:
                route.continue_()
            else:
                waiting.append(route)

        self.page.route(pattern, handle)
        try:
            yield waiting
        finally:
            is_over = True
            for route in waiting:
                route.continue_()
            self.page.unroute(pattern, handle)

    def snapshots(self):
        """Return the snapshots of this notebook's kernel, as the panel shows them."""
        return self.sessions.locator(f"[data-kernel='{self.kernel_id()}'] .jp-GpuCkptSnapshot")

    def execute(self, command, **arguments):
        """Run a command of JupyterLab."""
        self.page.evaluate(
            "async ([id, args]) => { await window.jupyterapp.commands.execute(id, args); }",
            [command, arguments],
        )

    def show(self, name, *, until=HAS_IDLE_KERNEL):
        """Open a notebook in the page, or bring it to the front, and return it."""
        self.execute("docmanager:open", path=name)
        self.wait_for("name => window.jupyterapp.shell.currentWidget?.context?.path === name", name)
        self.wait_for(until)
        return NotebookPage(self.page, self.expect, self.server, name)

    def kernel_id(self):
        return self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.id"
        )

    def require_engine(self):
        """Skip, or fail where the engine is required, unless the kernel runs under it."""
        kernel = self.server.get(f"api/gpuckpt/kernels/{self.kernel_id()}")
        if not kernel["managed"]:
            missing("criu", f"kernels do not run under the engine here: {kernel['reason']}")
        return self
