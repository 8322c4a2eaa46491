"""What is kept and shown of the output of code."""

from jupyter_gpuckpt.client import cell_output
from jupyter_gpuckpt.client.cell_output import CellOutput


def ended(*messages, status="ok"):
    output = CellOutput()
    for kind, content in messages:
        output.feed(kind, content)
    output.feed("execute_reply", {"status": status})
    output.feed("status", {"execution_state": "idle"})
    return output


def stream(text):
    return "stream", {"name": "stdout", "text": text}


def test_a_short_output_is_shown_whole_without_colors_and_overwritten_lines():
    output = ended(stream("1%\r50%\r100%\n\x1b[31mred\x1b[0m\r\n"), stream("x"))
    assert output.is_idle
    assert output.shown()["output"] == "100%\nred\r\nx"
    assert "output_id" not in output.shown()


def test_of_a_long_output_the_beginning_and_the_end_are_shown_and_all_can_be_read():
    text = "".join(f"{number:09}\n" for number in range(10_000))
    output = ended(stream(text))
    shown = output.shown()
    assert len(shown["output"]) < 5000
    assert shown["output"].startswith("000000000\n")
    assert shown["output"].endswith("000009999\n")
    read, offset = "", 0
    while True:
        part = output.part(offset, 30_000)
        read, offset = read + part["output"], offset + len(part["output"])
        if not part["left"]:
            break
    assert read == text


def test_beyond_the_limit_output_is_counted(monkeypatch):
    monkeypatch.setattr(cell_output, "_KEPT", 10)
    output = ended(stream("a" * 8), stream("b" * 8), stream("c"))
    assert output.shown()["output"] == "a" * 8 + "bb"
    assert output.shown()["lost_characters"] == 7


def test_results_errors_and_pictures_are_told():
    picture = {"image/png": "A" * 100}
    error = {"ename": "ValueError", "evalue": "no", "traceback": ["first", "last"]}
    output = ended(
        ("execute_result", {"data": {"text/plain": "5", "text/html": "<b>5</b>"}}),
        ("display_data", {"data": picture}),
        ("error", error),
        status="error",
    )
    shown = output.shown()
    assert (shown["status"], shown["error"]) == ("error", "ValueError: no")
    assert shown["output"] == "5\n[image/png, 100 characters]\nfirst\nlast\n"


def test_code_that_was_interrupted_has_timed_out_however_it_ends():
    for status in ("ok", "error"):
        output = CellOutput()
        output.time_out()
        output.feed("execute_reply", {"status": status, "ename": "KeyboardInterrupt"})
        assert output.status == "timed out"
    output = CellOutput()
    output.time_out()
    output.end("not ended")
    assert output.status == "not ended"


def test_nonsense_from_a_kernel_is_no_error():
    output = ended(
        ("stream", {}),
        ("display_data", {}),
        ("error", {"traceback": 5}),
        ("execute_result", {"data": None}),
    )
    assert output.shown()["output"] == "[]\n[]\n"
