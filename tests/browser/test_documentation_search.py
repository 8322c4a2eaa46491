"""The search of the built documentation shows the page that a reader looks for first."""

import functools
import importlib.util
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tests.conftest import missing

pytestmark = pytest.mark.browser

DOCS = Path(__file__).parent.parent.parent / "docs"
#: What readers type, and the page that helps.
QUERIES = {
    "littlest jupyterhub": "littlest-jupyterhub",
    "helm values": "zero-to-jupyterhub",
    "zero to jupyterhub": "zero-to-jupyterhub",
    "how much disk": "costs",
    "what does it cost": "costs",
    "security": "security",
    "secrets in snapshots": "secrets",
    "faq": "faq",
    "vs kishu": "compared",
    "s3 bucket": "remotes",
    "not enough shared memory": "faq",
    "vs code": "faq",
}


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and logs nothing."""

    def log_message(self, format, *args):  # noqa: A002 - the name of the base class
        pass


@pytest.fixture(scope="module")
def documentation(tmp_path_factory):
    """Build the documentation, serve it, and yield its address."""
    if any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_parser")):
        missing("browser", "Sphinx is not installed (the extra [docs])")
    built, doctrees = tmp_path_factory.mktemp("docs"), tmp_path_factory.mktemp("doctrees")
    # As `make docs` does: a link that leads nowhere fails it.
    strict = ["--quiet", "--fail-on-warning", "--keep-going", "--nitpicky"]
    command = [sys.executable, "-m", "sphinx", *strict, "--doctree-dir", doctrees, DOCS, built]
    subprocess.run(command, check=True, timeout=600)
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=built)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_the_first_page_that_a_search_shows_is_the_one_that_helps(documentation, context):
    page = context.new_page()
    first = {}
    for query in QUERIES:
        page.goto(f"{documentation}/search.html?q={quote(query)}")
        link = page.locator("ul.search li a").first.get_attribute("href")
        first[query] = Path(urlsplit(link).path).stem
    assert first == QUERIES
