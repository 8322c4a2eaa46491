"""A user chooses on the hub's page between the suspended sessions and a clean start, which loses none of them."""

import re
from html import unescape

import httpx
import pytest

from tests.server.page import TIMEOUT

pytestmark = pytest.mark.slow

CONFIG = "c.GpuCkptSpawnerMixin.offer_clean_start = True"


@pytest.fixture
def browser(make_hub):
    """Return the user and the browser in which they are logged in."""
    user = make_hub(CONFIG).user("eve")
    with httpx.Client(base_url=f"http://127.0.0.1:{user.port}/hub/", timeout=TIMEOUT) as browser:
        form = browser.get("login").text
        token = re.search(r'name="_xsrf" value="([^"]+)"', form)[1]
        browser.post("login", data={"username": user.name, "password": "x", "_xsrf": token})
        yield user, browser


def start(user, browser, choice):
    """Start the server by the form; return the form's text."""
    page = browser.get("spawn").text
    action = unescape(re.search(r'action="([^"]+)"', page)[1])
    url = f"http://127.0.0.1:{user.port}{action}"
    browser.post(url, data={"gpuckpt_start": choice})
    user.wait_until_started()
    return page


def test_a_clean_start_sets_sessions_aside_until_the_next_start(browser):
    user, browser = browser
    user.start()
    page = user.open("first.ipynb")
    page.run("x = 41; held = b'0123456789abcdef' * (4 << 20)")
    user.stop()

    form = start(user, browser, "clean")
    assert "first.ipynb" in form
    assert re.search(r"<td>\d+\.\d MB</td><td></td><td>just now</td>", form)
    assert user.get("api/sessions") == []
    # Nothing of it is gone, nor when the clean server is stopped.
    assert len(user.get("api/gpuckpt/snapshots")["snapshots"]) == 1
    user.open("second.ipynb").run("y = 1")
    user.stop()

    form = start(user, browser, "list")
    assert "first.ipynb" in form
    assert "second.ipynb" in form
    paths = {session["path"] for session in user.get("api/sessions")}
    assert paths == {"first.ipynb", "second.ipynb"}
    assert user.page(page.kernel_id).run("print(x + 1)") == "42\n"
    user.stop()
    # The choice was for one start.
    user.start()
    assert len(user.get("api/sessions")) == 2
