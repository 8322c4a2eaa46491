"""Widgets of a suspended kernel: what pages are told in its place, and what wakes it."""

import signal
import uuid
from pathlib import Path

import pytest

CONTROL = "jupyter.widget.control"

WIDGETS = """
import ipywidgets
moved = []
slider = ipywidgets.IntSlider(value=7, description="how far")
slider.observe(lambda change: moved.append(change["new"]), "value")
picture = ipywidgets.Image(value=bytes(range(256)), format="png")
box = ipywidgets.VBox([slider, picture])
print(slider.model_id, picture.model_id)
"""


@pytest.fixture
def server(shared_server):
    """Yield a server that other tests of this file use as well; none of them leaves a kernel running."""
    yield shared_server
    for kernel in shared_server.get("api/kernels"):
        shared_server.request("DELETE", f"api/kernels/{kernel['id']}")


def widgets_of(page):
    """Make widgets; gives the ids of a slider's and a picture's comm."""
    return page.run(WIDGETS).split()


def say(page, comm_id, data):
    return page.send("comm_msg", {"comm_id": comm_id, "data": data})


def move(page, slider, value):
    """Send the message of a page whose slider is moved."""
    return say(page, slider, {"method": "update", "state": {"value": value}, "buffer_paths": []})


def done(page, request):
    """Wait until the kernel, or who speaks for it, is done with a message; gives what else it said to it."""

    def is_answer(message):
        return message["parent_header"].get("msg_id") == request

    page.wait_for(
        lambda m: is_answer(m) and m["content"].get("execution_state") == "idle",
    )
    return [m for m in list(page.received) if is_answer(m) and m["msg_type"] != "status"]


def open_control(page):
    comm_id = uuid.uuid4().hex
    content = {"comm_id": comm_id, "target_name": CONTROL, "data": {}}
    return comm_id, page.send("comm_open", content, metadata={"version": "1.0.0"})


def ask_for_states(page):
    """Send the first request of ipywidgets' front end; return the kernel's data and buffers."""
    comm_id, _ = open_control(page)
    (answer,) = done(page, say(page, comm_id, {"method": "request_states"}))
    assert answer["msg_type"] == "comm_msg", answer["content"]
    assert answer["channel"] == "iopub"
    assert answer["content"]["comm_id"] == comm_id
    done(page, page.send("comm_close", {"comm_id": comm_id, "data": {}}))
    return with_buffers(answer)


def with_buffers(message):
    """Return a message's data with its buffers in their places, because their order does not matter."""
    data = message["content"]["data"]
    for path, buffer in zip(data["buffer_paths"], message["buffers"], strict=True):
        state = data.get("states", data.get("state"))
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = bytes(buffer)
    return {key: value for key, value in data.items() if key != "buffer_paths"}


def complaints(page, comm_id=""):
    """Return the kernel's errors about messages for unknown comms."""
    said = [m["content"]["text"] for m in page.received if m["content"].get("name") == "stderr"]
    return [text for text in said if comm_id in text]


def load(page):
    """Send the requests of a newly opened page with widgets and Contextual Help; return the comms and states in the replies."""
    page.reply(page.send("kernel_info_request", {}))
    page.send("history_request", {"hist_access_type": "tail", "n": 1})
    page.send("debug_request", {"type": "request", "command": "debugInfo", "seq": 0}, "control")
    listed = page.reply(page.send("comm_info_request", {"target_name": "jupyter.widget"}))
    states = ask_for_states(page)
    help_asked = {"code": "x", "cursor_pos": 1, "detail_level": 0}
    page.reply(page.send("inspect_request", help_asked))
    return listed["content"], states


def test_the_kernel_and_who_answers_for_it_say_the_same(server):
    page = server.open()
    slider, picture = widgets_of(page)
    page.run("from comm import create_comm; other = create_comm(target_name='other')")
    other = page.run("print(other.comm_id)").strip()
    questions = [
        {"target_name": "jupyter.widget"},
        {"target_name": "other"},
        {},
        {"target_name": "none"},
    ]

    def told(page):
        lists = [
            page.reply(page.send("comm_info_request", asked))["content"] for asked in questions
        ]
        return lists, ask_for_states(page)

    live = told(page)
    assert {slider, picture} <= set(live[0][0]["comms"])
    assert list(live[0][1]["comms"]) == [other]
    assert live[1]["states"][slider]["state"]["value"] == 7
    assert live[1]["states"][picture]["state"]["value"] == bytes(range(256))
    server.do("suspend", page.kernel_id)
    for binary in (False, True):
        fresh = server.page(page.kernel_id, binary=binary)
        assert told(fresh) == live
        sessions = {m["header"]["session"] for m in fresh.received}
        assert sessions == {page.received[0]["header"]["session"]}
    assert server.kernel(page.kernel_id)["state"] == "suspended"


@pytest.mark.slow
def test_twenty_page_loads_wake_nothing_also_after_a_restart_of_the_server(server):
    page, large = server.open(), server.open("large.ipynb", binary=True)
    slider, _ = widgets_of(page)
    live = load(page)
    server.do("suspend", page.kernel_id)
    for number in range(20):
        assert load(server.page(page.kernel_id, binary=bool(number % 2))) == live
    assert server.kernel(page.kernel_id)["state"] == "suspended"

    # Too much for the record, so that only this server knows it.
    large.run("import ipywidgets, os; picture = ipywidgets.Image(value=os.urandom(4_000_000))")
    live_large = load(large)
    server.do("suspend", large.kernel_id)
    assert load(server.page(large.kernel_id)) == live_large
    records = Path(server.env["JUPYTER_GPUCKPT_DATA_DIR"], "state", "kernels")
    assert (records / large.kernel_id / "record.json").stat().st_size < 1_000_000

    server.stop(signal.SIGTERM)
    server.start()
    page, large = server.page(page.kernel_id, binary=True), server.page(large.kernel_id)
    assert load(page) == live
    (answer,) = done(large, open_control(large)[1])
    assert answer["msg_type"] == "comm_close"
    listed = large.reply(large.send("comm_info_request", {"target_name": "jupyter.widget"}))
    assert listed["content"] == live_large[0]
    for kernel in (page, large):
        assert server.kernel(kernel.kernel_id)["state"] == "suspended"

    move(page, slider, 12)
    assert page.run("print(slider.value, moved)") == "12 [12]\n"
    # Of what the pages asked in its place the kernel has never heard.
    comms = "set(get_ipython().kernel.comm_manager.comms)"
    assert page.run(f"print({comms} == set(ipywidgets.widgets.widget._instances))") == "True\n"
    assert not complaints(page)


# Comms of a page of the newer protocol are looked at below, while a cell moves a slider.
@pytest.mark.parametrize("binary", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_moved_slider_brings_the_kernel_back(server, binary):
    page = server.open(binary=binary)
    slider, _ = widgets_of(page)
    server.do("suspend", page.kernel_id)
    fresh = server.page(page.kernel_id, binary=binary)
    load(fresh)
    assert server.kernel(page.kernel_id)["state"] == "suspended"
    done(fresh, move(fresh, slider, 12))
    assert server.kernel(page.kernel_id)["state"] == "running"
    assert fresh.run("print(slider.value, moved)") == "12 [12]\n"
    # And the kernel's own changes reach the page that it has never told about the slider.
    request = fresh.execute("slider.value = 30")
    told = [m for m in done(fresh, request) if m["msg_type"] == "comm_msg"]
    assert [(m["content"]["comm_id"], m["content"]["data"]["state"]["value"]) for m in told] == [
        (slider, 30)
    ]


def test_a_slider_goes_on_after_a_resume_that_failed(server):
    """A page sends the next value only when the last one is done with."""
    folder = server.root / "folder"
    folder.mkdir()
    page = server.open("folder/notebook.ipynb")
    slider, _ = widgets_of(page)
    server.do("suspend", page.kernel_id)
    folder.rename(server.root / "aside")
    assert done(page, move(page, slider, 11)) == []
    assert server.kernel(page.kernel_id)["state"] == "suspended"
    (server.root / "aside").rename(folder)
    done(page, move(page, slider, 12))
    assert page.run("print(slider.value, moved)") == "12 [12]\n"


def test_a_single_widget_is_told_about_without_waking(server):
    """What pages with an older ipywidgets ask, and others whose control comm was closed."""
    page = server.open()
    ids = widgets_of(page)
    live = [with_buffers(done(page, say(page, one, {"method": "request_state"}))[0]) for one in ids]
    server.do("suspend", page.kernel_id)
    for binary in (False, True):
        fresh = server.page(page.kernel_id, binary=binary)
        for comm_id, expected in zip(ids, live, strict=True):
            (answer,) = done(fresh, say(fresh, comm_id, {"method": "request_state"}))
            assert answer["content"]["comm_id"] == comm_id
            assert with_buffers(answer) == expected
    assert server.kernel(page.kernel_id)["state"] == "suspended"


def test_without_states_the_control_comm_is_closed_and_the_rest_waits(server):
    page = server.open(binary=True)
    slider, _ = widgets_of(page)
    page.run("more_than_is_kept = ipywidgets.Image(value=bytes(17_000_000))")
    server.do("suspend", page.kernel_id)
    fresh = server.page(page.kernel_id, binary=True)
    comm_id, opened = open_control(fresh)
    late = say(fresh, comm_id, {"method": "request_states"})
    (answer,) = done(fresh, opened)
    assert answer["msg_type"] == "comm_close"
    assert answer["content"]["comm_id"] == comm_id
    assert done(fresh, late) == []
    listed = fresh.reply(fresh.send("comm_info_request", {"target_name": "jupyter.widget"}))
    assert slider in listed["content"]["comms"]
    waiting = say(fresh, slider, {"method": "request_state"})
    fresh.reply(fresh.send("inspect_request", {"code": "x", "cursor_pos": 1, "detail_level": 0}))
    assert server.kernel(page.kernel_id)["state"] == "suspended"

    server.do("resume", page.kernel_id)
    (answer,) = done(fresh, waiting)
    assert answer["content"]["data"]["state"]["value"] == 7
    assert done(fresh, say(fresh, comm_id, {"method": "request_states"})) == []
    assert not complaints(fresh)


def test_a_kernel_without_widgets_closes_the_control_comm(server):
    page = server.open()
    page.run("pass")
    server.do("suspend", page.kernel_id)
    (answer,) = done(page, open_control(page)[1])
    assert answer["msg_type"] == "comm_close"
    assert page.reply(page.send("comm_info_request", {}))["content"]["comms"] == {}
    # A comm that nobody knows of is no reason to bring the kernel back.
    say(page, uuid.uuid4().hex, {"method": "update", "state": {"value": 1}})
    page.reply(page.send("complete_request", {"code": "x", "cursor_pos": 1}))
    assert server.kernel(page.kernel_id)["state"] == "suspended"


def test_a_control_comm_that_was_answered_is_closed_when_the_kernel_is_back(server):
    """So that the page asks the kernel: what was saved is old by then."""
    page = server.open()
    widgets_of(page)
    server.do("suspend", page.kernel_id)
    comm_id, opened = open_control(page)
    assert done(page, opened) == []
    server.do("resume", page.kernel_id)
    (answer,) = done(page, say(page, comm_id, {"method": "request_states"}))
    assert answer["msg_type"] == "comm_close"
    assert ask_for_states(page)["states"]
    assert not complaints(page, comm_id)


COUNTING = """
import pathlib, time
slider.max, number = 1_000_000, 0
while not pathlib.Path({stop!r}).exists():
    number += 1
    slider.value = number
    ipywidgets.IntSlider(value=number).close()
    time.sleep(0.01)
print(number)
"""


def test_a_cell_that_moves_a_slider_is_suspended_in_its_middle(server, tmp_path):
    page = server.open()
    slider, _ = widgets_of(page)

    def values(shown):
        return [
            m["content"]["data"]["state"]["value"]
            for m in list(shown.received)
            if m["msg_type"] == "comm_msg"
            and m["content"]["comm_id"] == slider
            and "value" in m["content"]["data"]["state"]
        ]

    request = page.execute(COUNTING.format(stop=str(tmp_path / "stop")))
    shown, drawn = page, 0
    for _ in range(3):
        shown.wait_for(lambda _, shown=shown, drawn=drawn: (values(shown) or [0])[-1] > drawn + 5)
        server.do("suspend", page.kernel_id)
        shown = server.page(page.kernel_id, binary=True)
        _, told = load(shown)
        # What led to these states is not told as well: a page closes comms that are opened before it knows their target.
        assert not [m for m in shown.received if m["msg_type"] == "comm_open"]
        assert values(shown) == []
        assert drawn < told["states"][slider]["state"]["value"]
        drawn = told["states"][slider]["state"]["value"]
        server.do("resume", page.kernel_id)
    (tmp_path / "stop").touch()
    last = int(page.output(request))
    shown.wait_for(lambda m: m["msg_type"] == "stream")
    # A page hears of every value after the one that it was told when it was opened.
    assert set(range(drawn + 1, last + 1)) <= set(values(shown))
    assert values(shown)[-1] == last
    assert values(page) == list(range(1, last + 1))


def test_a_restarted_kernel_has_no_widgets_of_the_last_one(server):
    page = server.open()
    widgets_of(page)
    server.do("suspend", page.kernel_id)
    server.request("POST", f"api/kernels/{page.kernel_id}/restart")
    page = server.page(page.kernel_id)
    page.run("pass")
    server.do("suspend", page.kernel_id)
    assert page.reply(page.send("comm_info_request", {}))["content"]["comms"] == {}
    (answer,) = done(page, open_control(page)[1])
    assert answer["msg_type"] == "comm_close"


def test_asking_for_widgets_runs_nothing_of_the_users(server):
    page = server.open()
    widgets_of(page)
    page.run("ran = []")
    page.run("get_ipython().events.register('pre_execute', lambda: ran.append('pre'))")
    page.run("ran.clear()")
    server.do("save", page.kernel_id)
    assert page.run("print(ran, moved)") == "['pre'] []\n"
