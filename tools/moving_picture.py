"""Make docs/screenshots/moving.webp with a real server and browser: a cell runs on after its server was stopped."""

import io
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, ViewportSize, expect
from screenshots import FOLDER, browser_and_lab

from tests.browser.notebook_page import NotebookPage

PICTURE = FOLDER / "moving.webp"
SIZE: ViewportSize = {"width": 1000, "height": 620}
MAX_BYTES = 2_000_000
#: A picture that is shown longer than this only takes the time of who looks at it.
_LONGEST_SECONDS = 2.5

_CELLS = [
    "import numpy as np\n\n"
    "rng = np.random.default_rng(1)\n"
    "features = rng.normal(size=(400_000, 24))\n"
    "target = features @ rng.normal(size=24)\n"
    "weights = np.zeros(24)",
    "import time\n\n"
    "for epoch in range(1, 11):\n"
    "    error = features @ weights - target\n"
    "    weights -= 0.3 * features.T @ error / len(target)\n"
    "    print(f'epoch {epoch:2}  loss {np.square(error).mean():8.4f}')\n"
    "    time.sleep(1)",
]

#: Shows a sentence at the page's lower edge.
_CAPTION = """text => {
  let caption = document.getElementById('caption');
  if (!caption) {
    caption = document.body.appendChild(document.createElement('div'));
    caption.id = 'caption';
    caption.style.cssText = 'position: fixed; z-index: 100000; left: 0; right: 0; bottom: 0; padding: 12px;'
      + 'font: 20px sans-serif; text-align: center; color: white; background: #1a3c5e';
  }
  caption.textContent = text;
}"""


class Film:
    """The pictures of a page, each with the moment at which it was taken."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._frames: list[tuple[bytes, float]] = []

    def caption(self, text: str) -> None:
        """Show a sentence below what follows."""
        self._page.evaluate(_CAPTION, text)

    def until(self, is_over: Callable[[], bool]) -> None:
        """Take pictures until a condition holds."""
        deadline = time.monotonic() + 120
        while not is_over():
            if time.monotonic() > deadline:
                raise TimeoutError("The page does not show what the picture is about.")
            self._take()
        self._take()

    def for_seconds(self, seconds: float) -> None:
        """Take pictures for some seconds."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > end)

    def _take(self) -> None:
        frame = self._page.screenshot()
        if not self._frames or frame != self._frames[-1][0]:
            self._frames.append((frame, time.monotonic()))

    def write(self, path: Path) -> None:
        """Write all of it as an animated WebP."""
        self._frames.append((self._frames[-1][0], time.monotonic() + _LONGEST_SECONDS))
        times = [moment for _, moment in self._frames]
        seconds = [min(after - before, _LONGEST_SECONDS) for before, after in pairwise(times)]
        first, *others = (Image.open(io.BytesIO(frame)) for frame, _ in self._frames[:-1])
        milliseconds = [max(40, round(1000 * length)) for length in seconds]
        first.save(
            path, save_all=True, append_images=others, duration=milliseconds, loop=0, quality=55
        )
        print(
            f"{path.name}: {len(milliseconds)} pictures, {sum(seconds):.0f} s, {path.stat().st_size} bytes"
        )


def act(film: Film, notebook: NotebookPage) -> None:
    """Run a long cell, stop the server in the middle, and start the next one."""
    server = notebook.server
    lost = notebook.page.get_by_role("dialog").get_by_role("button").last

    def shows(text: str) -> bool:
        if lost.is_visible():  # JupyterLab says that it has lost the server
            lost.click()
        return text in notebook.output(1)

    notebook.start_cell(0)
    expect(notebook.cell(0).locator(".jp-InputPrompt")).to_have_text("[1]:", timeout=60_000)
    film.caption("A cell is at work.")
    notebook.start_cell(1)
    film.until(lambda: shows("epoch  4"))
    film.caption("The server is stopped. Its kernel is suspended in the middle of the cell.")
    with ThreadPoolExecutor(1) as other:
        stopping = other.submit(server.stop)
        film.until(stopping.done)
        film.for_seconds(2)
        film.caption("The next server starts. The page connects again, and the cell goes on.")
        starting = other.submit(server.restart)
        film.until(lambda: shows("epoch 10") and starting.done())
    film.caption("Nothing was lost.")
    film.for_seconds(1)


def main() -> int:
    """Make the picture and return the exit status."""
    with browser_and_lab(SIZE) as (context, server):
        page = context.new_page()
        server.write_notebook("training.ipynb", *_CELLS)
        notebook = NotebookPage(page, expect, server, "training.ipynb").open()
        notebook.execute("application:toggle-left-area")
        film = Film(page)
        act(film, notebook)
        film.write(PICTURE)
    if PICTURE.stat().st_size > MAX_BYTES:
        print(f"{PICTURE.name} is larger than {MAX_BYTES} bytes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
