"""A JupyterLab server, a browser and notebooks in it.

Everything is skipped where playwright, a chromium or a usable engine is missing, and fails where GPUCKPT_REQUIRE names
`browser` or `criu`.
"""

import importlib
import importlib.util
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser.lab_server import running_lab
from tests.browser.notebook_page import NotebookPage
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


#: What sites store, as DevTools calls it, without the cache of compiled scripts.
STORED = "cookies,file_systems,indexeddb,local_storage,service_workers,cache_storage"

#: A notification goes when the animation of its progress bar ends.
LASTING = """document.addEventListener('DOMContentLoaded', () => {
  const style = document.createElement('style');
  style.textContent = '.Toastify__progress-bar { animation-play-state: paused !important; }';
  document.head.append(style);
});"""


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def browser_profile(sync_api, tmp_path_factory):
    """Yield a browser context of Debian's chromium, or of the one that CHROMIUM names, that lasts for the module.

    It has a profile on disk, where chromium keeps JupyterLab's compiled scripts: compiling them at each load takes 3 s of
    processor time. A context of `new_context()` would forget them.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        missing("browser", "no chromium is installed")
    with sync_api.sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("chromium"),
            executable_path=path,
            args=CHROMIUM_OPTIONS,
            viewport={"width": 1280, "height": 800},
        )
        context.set_default_timeout(120_000)
        # Else a notification may be gone before a slow machine has looked.
        context.add_init_script(LASTING)
        yield context
        context.close()


@pytest.fixture(scope="module")
def lab_server(tmp_path_factory):
    """JupyterLab with folders, kernels and a daemon of its own."""
    if importlib.util.find_spec("jupyterlab") is None:
        missing("browser", "jupyterlab is not installed")
    with running_lab(tmp_path_factory.mktemp("lab")) as [server]:
        yield server


#: JupyterLab 4.7's debugger has them where a kernel has no debugger or is restarted.
ERRORS_OF_THE_DEBUGGER = (
    "No active debugger session",
    "Canceled future for debug_request message before replies were done",
)


@pytest.fixture
def context(browser_profile, request, tmp_path):
    """Yield the browser context in which pages are opened, without what earlier tests stored. An error in a page fails the test."""
    context, errors = browser_profile, []

    def note(error):
        # Notebook 7.6 has one of its own at every start.
        if (
            "/static/notebook/" not in (error.error.stack or "")
            and error.error.message not in ERRORS_OF_THE_DEBUGGER
        ):
            errors.append(error.error.stack or str(error.error))

    # The browser ends with its last page.
    blank = context.new_page()
    context.on("weberror", note)
    for page in set(context.pages) - {blank}:
        page.close()
    yield context
    folder = Path(os.environ.get("GPUCKPT_SCREENSHOTS", tmp_path))
    pages = [page for page in context.pages if page != blank]
    for number, page in enumerate(pages):
        page.screenshot(path=folder / f"{request.node.name}{number or ''}.png")
    context.remove_listener("weberror", note)
    context.clear_cookies()
    sites = {"{0.scheme}://{0.netloc}".format(urlsplit(page.url)) for page in pages}
    tools = context.new_cdp_session(blank)
    for site in sites:
        tools.send("Storage.clearDataForOrigin", {"origin": site, "storageTypes": STORED})
    for page in pages:
        page.close()
    assert not errors


@pytest.fixture
def open_notebook(context, expect, lab_server):
    """Return a function that opens a notebook with these cells: `open_notebook("a.ipynb", "x = 1", "x")`.

    Without cells it opens an existing one; with `tab` in another page.
    """
    page = context.new_page()

    def open_notebook(name, *cells, kernel="python3", place="lab/tree", tab=False):
        if cells:
            lab_server.write_notebook(name, *cells, kernel=kernel)
        shown = context.new_page() if tab else page
        return NotebookPage(shown, expect, lab_server, name, place=place).open()

    return open_notebook
