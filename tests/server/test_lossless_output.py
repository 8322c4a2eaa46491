"""What a busy kernel says is neither lost nor doubled, and the agent that sees to it is not noticed."""

import time

import pytest

CELL = """
import sys, time
for number in range({count}):
    print(number)
    if number % 50 == 0:
        print("error", number, file=sys.stderr)
    time.sleep(0.005)
"""


def lines(page, request, name="stdout"):
    """What a cell has printed so far."""
    return "".join(
        m["content"]["text"]
        for m in list(page.received)
        if m["msg_type"] == "stream"
        and m["content"]["name"] == name
        and m["parent_header"].get("msg_id") == request
    ).splitlines()


def wait_for_lines(page, request, more_than, seconds=30):
    deadline = time.monotonic() + seconds
    while len(lines(page, request)) <= more_than:
        assert time.monotonic() < deadline, lines(page, request)[-3:]
        time.sleep(0.005)


def execute_asking(page, code):
    """Send a cell that may ask for input."""
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": True}
    return page.send("execute_request", content)


@pytest.fixture
def pages(server):
    """Two pages of one kernel, in either protocol."""
    first = server.open("notebook.ipynb")
    first.run("pass")
    return [first, server.page(first.kernel_id, binary=True)]


def test_a_cell_that_prints_all_the_time_loses_no_line_over_ten_suspends(server, pages):
    page = pages[0]
    request = page.execute(CELL.format(count=2000))
    for _ in range(10):
        wait_for_lines(page, request, len(lines(page, request)) + 20)
        server.do("suspend", page.kernel_id)
        server.do("resume", page.kernel_id)
    for shown in pages:
        assert shown.reply(request)["content"]["status"] == "ok" if shown is page else True
        shown.wait_for(
            lambda m: (
                m["parent_header"].get("msg_id") == request
                and m["content"].get("execution_state") == "idle"
            )
        )
        assert lines(shown, request) == [str(number) for number in range(2000)]
        errors = [f"error {number}" for number in range(0, 2000, 50)]
        assert lines(shown, request, "stderr") == errors


def test_saves_lose_and_double_nothing(server, pages):
    page = pages[0]
    request = page.execute(CELL.format(count=1000))
    for _ in range(3):
        wait_for_lines(page, request, len(lines(page, request)) + 20)
        server.do("save", page.kernel_id)
    page.reply(request)
    assert lines(page, request) == [str(number) for number in range(1000)]


def test_the_reply_to_a_cell_that_ends_at_the_wrong_moment_comes(server, pages):
    """Cells end before, in and after the freeze."""
    page = pages[0]
    for length in (0.05, 0.1, 0.15, 0.2, 0.3):
        request = page.execute(f"import time; time.sleep({length}); print('done')")
        server.do("suspend", page.kernel_id)
        server.do("resume", page.kernel_id)
        assert page.output(request) == "done\n"


def test_a_question_survives_and_its_answer_wakes_the_kernel(server, pages):
    page = pages[0]
    request = execute_asking(page, "name = input('Who? '); print(name)")
    asked = page.wait_for(lambda m: m["msg_type"] == "input_request")
    assert asked["content"]["prompt"] == "Who? "
    server.do("suspend", page.kernel_id)
    page.send("input_reply", {"status": "ok", "value": "me"}, channel="stdin")
    assert page.output(request) == "me\n"


def test_a_question_asked_right_after_a_resume_reaches_the_page(server, pages):
    page = pages[0]
    for _ in range(4):
        code = "import time\nfor _ in range(30): time.sleep(0.01)\nprint(input())"
        request = execute_asking(page, code)
        server.do("suspend", page.kernel_id)
        server.do("resume", page.kernel_id)
        page.wait_for(
            lambda m, request=request: (
                m["msg_type"] == "input_request" and m["parent_header"].get("msg_id") == request
            )
        )
        page.send("input_reply", {"status": "ok", "value": "me"}, channel="stdin")
        assert page.output(request) == "me\n"


def test_nothing_of_the_agent_shows(server):
    page = server.open()
    assert page.reply(page.execute("x = 1"))["content"]["execution_count"] == 1
    assert page.run("%who").split() == ["x"]
    assert (
        page.run("print([name for name in globals() if 'gpuckpt' in name or 'agent' in name])")
        == "[]\n"
    )
    assert "compile" not in page.run("%history")
    forked = "import os; pid = os.fork()\nif not pid: print('child', flush=True); os._exit(0)\nos.waitpid(pid, 0)"
    server.do("save", page.kernel_id)
    assert "child" in page.run(forked + "\nimport time; time.sleep(0.5)")


def test_a_kernel_whose_server_died_while_it_was_silent_speaks_to_the_next(server, pages):
    page = pages[0]
    page.run("import os; data = os.urandom(300_000_000)")
    page.execute("import time\nfor number in range(2000): print(number); time.sleep(0.005)")
    server.begin("save", page.kernel_id)
    server.kill()
    server.start()
    again = server.page(page.kernel_id)
    again.wait_for(lambda m: m["msg_type"] == "stream", 20)


def test_a_kernel_that_nobody_tells_to_speak_does_so_by_itself(server, pages):
    page = pages[0]
    page.run("agent = get_ipython().kernel.control_handlers['gpuckpt_request'].__self__")
    page.run("type(agent)._handle.__globals__['_LONGEST_SILENCE'] = 1.0")
    page.run("loop = get_ipython().kernel.control_stream.io_loop; import time")
    code = "loop.add_callback(agent._prepare); time.sleep(0.5); print('kept')"
    request = page.execute(code)
    time.sleep(1)
    assert lines(page, request) == []
    assert page.output(request) == "kept\n"
