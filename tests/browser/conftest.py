"""A JupyterLab server, a browser and notebooks in it.

Everything is skipped where playwright, a chromium or a usable engine is missing, and fails where GPUCKPT_REQUIRE names
`browser` or `criu`.

All tests share one chromium; those that ask for no other server share one JupyterLab, too, and its page. A load of the page takes
four seconds of processor time, a start of the server three.
"""

import importlib
import importlib.util
import itertools
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.browser.lab_page import SIZE, LabPage
from tests.browser.lab_server import running_lab
from tests.browser.notebook_page import LAB, NotebookPage
from tests.conftest import missing

CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
#: Without the compilers that make hot functions faster: for pages that are soon over, they take more time than they save.
WITHOUT_COMPILERS = "--js-flags=--no-maglev --no-turbofan"


#: A notification goes when the animation of its progress bar ends. Other animations only take processor time.
LASTING = """document.addEventListener('DOMContentLoaded', () => {
  const style = document.createElement('style');
  style.textContent = `
    *, ::before, ::after {
      animation-duration: 1ms !important;
      animation-iteration-count: 1 !important;
      transition: none !important;
    }
    .Toastify__progress-bar { animation-play-state: paused !important; }`;
  document.head.append(style);
});"""


@pytest.fixture(scope="package")
def sync_api():
    """Playwright's synchronous interface."""
    if importlib.util.find_spec("playwright") is None:
        missing("browser", "playwright is not installed")
    return importlib.import_module("playwright.sync_api")


@pytest.fixture
def expect(sync_api):
    """Playwright's assertions, which wait."""
    sync_api.expect.set_options(timeout=120_000)
    return sync_api.expect


@pytest.fixture(scope="package")
def playwright(sync_api):
    """Yield playwright, which a process can start only once at a time."""
    with sync_api.sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="package")
def chromium_path():
    """Return the path of Debian's chromium, or of the one that CHROMIUM names."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        missing("browser", "no chromium is installed")
    return path


@pytest.fixture(scope="package")
def browser_profile(playwright, chromium_path, tmp_path_factory):
    """Yield a browser context that lasts for all tests.

    It has a profile on disk, where chromium keeps JupyterLab's compiled scripts: compiling them at each load takes 3 s of
    processor time. A context of `new_context()` would forget them.
    """
    context = playwright.chromium.launch_persistent_context(
        tmp_path_factory.mktemp("chromium"),
        executable_path=chromium_path,
        args=[*CHROMIUM_OPTIONS, WITHOUT_COMPILERS],
        viewport=SIZE,
    )
    context.set_default_timeout(120_000)
    # Else a notification may be gone before a slow machine has looked.
    context.add_init_script(LASTING)
    yield context
    context.close()


@pytest.fixture(scope="package")
def lab_server(tmp_path_factory):
    """JupyterLab with folders, kernels and a daemon of its own."""
    if importlib.util.find_spec("jupyterlab") is None:
        missing("browser", "jupyterlab is not installed")
    with running_lab(tmp_path_factory.mktemp("lab")) as [server]:
        yield server
        # A stop would suspend all kernels that the tests have left.
        server.end_without_goodbye()


@pytest.fixture(scope="package")
def lab_page():
    """Return the page of JupyterLab that tests use one after the other."""
    return LabPage()


#: JupyterLab's own: its debugger meets a kernel without one, a kernel is restarted or shut down while it is asked for something, or
#: (4.2, 4.5) a notebook is closed shortly after a change, or (4.6) shortly after it was shown: its toolbar is then measured once more.
ERRORS_OF_JUPYTERLAB = re.compile(
    r"No active debugger session|A kernel is required to send debug messages"
    r"|Canceled future for \w+ message before replies were done"
    r"|at \S+\.(_cellToolbarOverlapsContents|estimateWidgetSize) "
    r"|null \(reading 'promise'\)\s+at \S+\.invoke \(\S+/static/lab/\S+\)\s+at \S+/static/lab/"
)


@pytest.fixture
def pages(browser_profile):
    """Yield the browser context in which pages are opened. An error in a page fails the test."""
    context, errors = browser_profile, []

    def note(event):
        error = event.error
        # Notebook 7.6 has one of its own at every start.
        said = error.stack or str(error)
        if "/static/notebook/" not in said and not ERRORS_OF_JUPYTERLAB.search(said):
            errors.append(said)

    context.on("weberror", note)
    yield context
    context.remove_listener("weberror", note)
    assert not errors


@pytest.fixture
def picture(request, tmp_path):
    """Return a function that keeps a picture of a page at the end of a test that failed, or of any if GPUCKPT_SCREENSHOTS is set."""
    folder = os.environ.get("GPUCKPT_SCREENSHOTS")
    numbers = itertools.count()
    request.node.stash[FAILED] = False

    def picture(page):
        name = f"{request.node.name}{next(numbers) or ''}.png"
        if folder or request.node.stash[FAILED]:
            page.screenshot(path=Path(folder or tmp_path) / name)

    return picture


@pytest.fixture
def context(pages, picture):
    """Yield the browser context for pages of other servers."""
    before = set(pages.pages)
    yield pages
    for page in set(pages.pages) - before:
        picture(page)
        page.close()


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Remember that a test failed."""
    report = yield
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    return report


@pytest.fixture
def open_notebook(pages, lab_page, expect, lab_server, picture, request):
    """Yield a function that opens a notebook with these cells: `open_notebook("a.ipynb", "x = 1", "x")`.

    Without cells it opens an existing one; with `tab` or another place in another page than JupyterLab's that lasts.
    """
    others = []

    def open_notebook(name, *cells, kernel="python3", place=LAB, tab=False):
        if cells:
            lab_server.write_notebook(name, *cells, kernel=kernel)
        if not tab and place == LAB:
            return lab_page.open_notebook(pages, expect, lab_server, name)
        others.append(pages.new_page())
        return NotebookPage(others[-1], expect, lab_server, name, place=place).open()

    yield open_notebook
    for page in filter(None, [lab_page.page, *others]):
        picture(page)
    for page in others:
        page.close()
    if request.node.stash[FAILED]:
        lab_page.close()
    lab_page.clear()
    lab_server.end_sessions()
    lab_page.close_notifications()
