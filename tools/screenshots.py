"""Take the pictures in docs/screenshots, with a real server, kernels, snapshots and browser: `make screenshots`."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, ViewportSize, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.conftest import CHROMIUM_OPTIONS  # noqa: E402  the checkout is no package
from tests.browser.lab_server import LabServer, running_lab  # noqa: E402
from tests.browser.notebook_page import NotebookPage  # noqa: E402

FOLDER = ROOT / "docs" / "screenshots"
SIZE: ViewportSize = {"width": 1280, "height": 800}

ANALYSIS = [
    "import numpy as np\nimport pandas as pd\n\n"
    "rng = np.random.default_rng(1)\n"
    "features = rng.normal(size=(2_000_000, 12))\n"
    'sales = pd.DataFrame(features, columns=[f"feature_{i}" for i in range(12)])\n'
    'log = open("results.csv", "a")',
    "weights, *_ = np.linalg.lstsq(features, features.sum(axis=1), rcond=None)\nweights.round(3)",
    'sales["prediction"] = features @ weights\n'
    'print(sales["prediction"].mean(), file=log, flush=True)\n'
    'sales["prediction"].describe()',
]
SMALL = ["import numpy as np\n\nx = np.arange(3_000_000)\nx.sum()"]


@contextmanager
def browser_and_lab(size: ViewportSize) -> Iterator[tuple[BrowserContext, LabServer]]:
    """Yield a browser with pages of this size, and a new JupyterLab server."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with (
        tempfile.TemporaryDirectory(prefix="jupyter-") as folder,
        running_lab(Path(folder)) as [server],
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_OPTIONS)
        yield browser.new_context(viewport=size, locale="en-GB"), server
        browser.close()


class Scene:
    """The subject of the pictures: a server with notebooks that have snapshots, in a browser."""

    def __init__(self, context: BrowserContext, server: LabServer) -> None:
        self.server = server
        self.page: Page = context.new_page()
        self.page.set_default_timeout(30_000)
        server.write_notebook("exploration.ipynb", *SMALL)
        server.write_notebook("analysis.ipynb", *ANALYSIS)
        self.exploration = self._open("exploration.ipynb")
        self.run(self.exploration, len(SMALL))
        self.act(self.exploration, "suspend", "Suspended exploration.ipynb")
        self.analysis = self._open("analysis.ipynb")
        self.run(self.analysis, 1)
        self.save_as("Data loaded")
        self.run(self.analysis, 1, first=1)
        self.act(self.analysis, "save", "Saved analysis.ipynb")
        self.run(self.analysis, 1, first=2)
        self.save_as("Before the experiment")
        self.execute("gpuckpt:show-sessions")
        self._annotate("feature_3 is dropped next.\nCompare the weights with Friday's.")
        expect(self.analysis.toasts).to_have_count(0)

    def _open(self, name: str) -> NotebookPage:
        return NotebookPage(self.page, expect, self.server, name).open()

    def _annotate(self, note: str) -> None:
        first = self.page.locator(".jp-GpuCkptSnapshot").first
        first.get_by_role("button", name="More for").click()
        self.page.get_by_role("menuitem", name="Edit Note…").click()
        dialog = self.page.locator(".jp-Dialog")
        dialog.get_by_role("textbox").fill(note)
        dialog.get_by_role("button", name="Save").click()
        expect(first.locator(".jp-GpuCkptSnapshot-note")).to_be_visible()

    def run(self, notebook: NotebookPage, count: int, *, first: int = 0) -> None:
        """Run cells and wait for them."""
        for index in range(first, first + count):
            notebook.start_cell(index)
            prompt = notebook.cell(index).locator(".jp-InputPrompt")
            expect(prompt).to_have_text(f"[{index + 1}]:", timeout=60_000)

    def act(self, notebook: NotebookPage, action: str, said: str) -> None:
        """Run a command on a kernel, and wait until its notification `said` has appeared and disappeared."""
        notebook.press(action)
        toast = notebook.toasts.filter(has_text=said)
        expect(toast).to_be_visible(timeout=60_000)
        expect(notebook.toasts).to_have_count(0, timeout=60_000)

    def save_as(self, title: str) -> None:
        """Save a snapshot with a title."""
        self.analysis.press("save as")
        dialog = self.page.locator(".jp-Dialog")
        dialog.get_by_role("textbox").fill(title)
        dialog.get_by_role("button", name="Save").click()
        expect(self.analysis.toasts.filter(has_text="Saved")).to_be_visible(timeout=60_000)
        expect(self.analysis.toasts).to_have_count(0, timeout=60_000)

    def execute(self, command: str, **arguments: object) -> None:
        """Run a command of JupyterLab."""
        self.analysis.execute(command, **arguments)

    def dialog_of(self, title: str, entry: str) -> None:
        """Open the dialog of an entry of a snapshot's menu."""
        snapshot = self.page.locator(".jp-GpuCkptSnapshot", has_text=title)
        snapshot.get_by_role("button", name="More for").click()
        self.page.get_by_role("menuitem", name=entry).click()
        expect(self.page.locator(".jp-Dialog-content")).to_be_visible()

    def close_dialog(self) -> None:
        """Close the open dialog."""
        self.page.keyboard.press("Escape")
        expect(self.page.locator(".jp-Dialog")).to_have_count(0)


def sessions(scene: Scene) -> None:
    """Take the picture of the panel beside a notebook."""


def store(scene: Scene) -> None:
    """Take the picture of the store, at the panel's end."""
    scene.page.locator(".jp-GpuCkptStore").scroll_into_view_if_needed()


def menu(scene: Scene) -> None:
    """Take the picture of the toolbar's menu."""
    scene.page.locator(".jp-GpuCkptSessions").evaluate("panel => panel.scrollTo(0, 0)")
    scene.analysis.menu_button.click()
    expect(scene.page.locator(".jp-GpuCkptMenu")).to_be_visible()


def close_menu(scene: Scene) -> None:
    """Close the menu."""
    scene.page.keyboard.press("Escape")


def comparison(scene: Scene) -> None:
    """Take the picture of a snapshot's variables beside the current ones."""
    scene.dialog_of("Data loaded", "Compare Variables with Now")


def going_back(scene: Scene) -> None:
    """Take the picture of the question before a rollback."""
    scene.dialog_of("Data loaded", "Restore This Snapshot")


def template(scene: Scene) -> None:
    """Take the picture of the question for a template's name."""
    scene.dialog_of("After [1]", "Save as Template…")


def launcher(scene: Scene) -> None:
    """Take the picture of the launcher with a template that was made of a snapshot."""
    scene.page.locator(".jp-Dialog").get_by_role("button", name="Save").click()
    toast = scene.analysis.toasts.filter(has_text="Made the template exploration-ready")
    expect(toast).to_be_visible(timeout=60_000)
    expect(scene.analysis.toasts).to_have_count(0, timeout=60_000)
    scene.execute("launcher:create")
    card = scene.page.locator(".jp-LauncherCard", has_text="Python 3 (exploration ready)")
    expect(card.first).to_be_visible()


def branches(scene: Scene) -> None:
    """Take the picture of a second live kernel, beside the first."""
    snapshot = scene.page.locator(".jp-GpuCkptSnapshot", has_text="Data loaded")
    snapshot.get_by_role("button", name="Branch").click()
    toast = scene.analysis.toasts.filter(has_text="Branched analysis.ipynb")
    expect(toast).to_be_visible(timeout=60_000)
    scene.analysis.show("analysis-branch-1.ipynb")
    scene.page.locator(".jp-GpuCkptSessions").evaluate("panel => panel.scrollTo(0, 0)")


def back_to_the_first(scene: Scene) -> None:
    """Go back from the branch to the first notebook."""
    scene.analysis.show("analysis.ipynb")


def suspended(scene: Scene) -> None:
    """Take the picture of a suspended notebook: the notification, the notice, the chip."""
    scene.analysis.press("suspend")
    expect(scene.analysis.banner).to_be_visible(timeout=60_000)
    toast = scene.analysis.toasts.filter(has_text="Suspended analysis.ipynb")
    expect(toast).to_be_visible(timeout=60_000)


def dark(scene: Scene) -> None:
    """Take the same picture in the dark theme."""
    expect(scene.analysis.toasts).to_have_count(0, timeout=60_000)
    scene.execute("apputils:change-theme", theme="JupyterLab Dark")
    body = scene.page.locator("body")
    expect(body).to_have_attribute("data-jp-theme-name", "JupyterLab Dark")


def running(scene: Scene) -> None:
    """Take the picture of the Running panel."""
    scene.execute("apputils:change-theme", theme="JupyterLab Light")
    scene.execute("running:show-panel")
    name = "Resume exploration.ipynb"
    expect(scene.page.get_by_role("button", name=name)).to_be_visible()


def notebook7(scene: Scene) -> None:
    """Take the picture of the same notebook in Notebook 7."""
    place = f"{scene.server.url}/notebooks/analysis.ipynb?token={scene.server.token}"
    scene.page.goto(place)
    expect(scene.analysis.banner).to_be_visible(timeout=60_000)
    scene.analysis.banner.get_by_role("button", name="History").click()
    expect(scene.page.locator(".jp-GpuCkptSnapshot").first).to_be_visible()


#: The pictures in their order, each with the function that is called after it.
PICTURES: list[tuple[Callable[[Scene], None], Callable[[Scene], None] | None]] = [
    (sessions, None),
    (store, None),
    (menu, close_menu),
    (comparison, Scene.close_dialog),
    (going_back, Scene.close_dialog),
    (template, None),
    (launcher, back_to_the_first),
    (branches, back_to_the_first),
    (suspended, None),
    (dark, None),
    (running, None),
    (notebook7, None),
]


def main() -> int:
    """Take all pictures and return the exit status."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with browser_and_lab(SIZE) as (context, server):
        scene = Scene(context, server)
        for show, afterwards in PICTURES:
            show(scene)
            path = FOLDER / f"{show.__name__.replace('_', '-')}.png"
            scene.page.screenshot(path=path, animations="disabled")
            print(path.relative_to(ROOT))
            if afterwards:
                afterwards(scene)
    return 0


if __name__ == "__main__":
    sys.exit(main())
