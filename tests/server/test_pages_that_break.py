"""What a page wanted while the kernel was away is done even if the page's websocket breaks meanwhile."""

import pytest

from tests.parameters import some_slow

WAITING = """
import os, time
print("waits")
while not os.path.exists("go"):
    time.sleep(0.01)
"""
ASKING = "print('hello', input('who? '))"


@pytest.fixture
def server(clean_server):
    return clean_server


def ask(page):
    """Run a cell that asks, up to its question."""
    content = {"code": ASKING, "silent": False, "store_history": True, "allow_stdin": True}
    request = page.send("execute_request", content)
    page.wait_for(is_question)
    return request


def is_question(message):
    return message["msg_type"] == "input_request"


def answer(page):
    page.send("input_reply", {"status": "ok", "value": "me"}, channel="stdin")


@pytest.mark.parametrize(
    ("binary", "noticed"), some_slow([(False, True), (True, False)], [(True, False)])
)
def test_an_answer_and_a_cell_are_held_until_they_are_delivered(server, binary, noticed):
    """`noticed`: the server knows that the websocket is broken before the page connects again."""
    page = server.open("notebook.ipynb", binary=binary)
    other = server.page(page.kernel_id)
    asking = ask(page)
    server.do("suspend", page.kernel_id)
    answer(page)
    cell = page.execute("print('next')")
    if noticed:
        page.close()
    again = server.page(page.kernel_id, client_id=page.client_id, binary=binary)
    assert again.output(asking) == "hello me\n"
    assert again.output(cell) == "next\n"
    if noticed:  # else the page may have connected before its answer arrived, and is asked again
        assert not any(map(is_question, again.received))
    other.wait_for(
        lambda m: m["msg_type"] == "stream" and m["parent_header"].get("msg_id") == asking
    )
    assert other.printed(asking) == "hello me\n"


def test_a_cell_whose_page_never_comes_back_runs(server):
    page = server.open()
    page.run("x = 41")
    server.do("suspend", page.kernel_id)
    cell = page.execute("x += 1; print(x)")
    page.close()
    new = server.page(page.kernel_id)
    new.wait_for(lambda m: m["parent_header"].get("msg_id") == cell)
    assert new.run("print(x)") == "42\n"


def test_a_page_that_connects_again_is_asked_again(server):
    page = server.open()
    asking = ask(page)
    page.close()
    again = server.page(page.kernel_id, client_id=page.client_id)
    assert again.wait_for(is_question)["parent_header"]["msg_id"] == asking
    server.do("suspend", page.kernel_id)
    server.stop()
    server.start()
    last = server.page(page.kernel_id, client_id=page.client_id)
    assert last.wait_for(is_question)["content"]["prompt"] == "who? "
    answer(last)
    assert last.output(asking) == "hello me\n"
    assert len([m for m in last.received if is_question(m)]) == 1


def test_a_page_that_was_away_is_told_why_its_cell_was_not_run(server):
    folder = server.root / "folder"
    folder.mkdir()
    page = server.open("folder/notebook.ipynb")
    page.run("x = 41")
    server.do("suspend", page.kernel_id)
    folder.rename(server.root / "aside")
    cell = page.execute("print(x)")
    page.close()
    again = server.page(page.kernel_id, client_id=page.client_id)
    assert again.reply(cell)["content"]["status"] == "error"


def test_a_cell_that_waited_in_the_kernel_asks_its_page_after_a_resume(server):
    """ipykernel 6 reads a cell only when the one before it has ended; its page has connected again by then."""
    page = server.open("notebook.ipynb")
    page.send("execute_request", {"code": WAITING, "silent": False, "store_history": True})
    page.wait_for(lambda m: m["msg_type"] == "stream")
    content = {"code": ASKING, "silent": False, "store_history": True, "allow_stdin": True}
    requests = [page.send("execute_request", content) for _ in range(2)]
    server.do("suspend", page.kernel_id)
    server.bring_back(page.kernel_id)
    (server.root / "go").touch()
    for request in requests:
        page.wait_for(lambda m: is_question(m) and m["parent_header"]["msg_id"] == request)  # noqa: B023
        answer(page)
        assert page.reply(request)["content"]["status"] == "ok"
        assert page.output(request) == "hello me\n"
