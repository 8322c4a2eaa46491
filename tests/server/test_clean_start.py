"""A server that starts without the sessions of earlier ones, and the next one that lists them."""

import pytest


@pytest.mark.slow
def test_a_clean_start_leaves_sessions_to_the_next_server(make_server):
    first = make_server().start()
    page = first.open()
    page.run("x = 41")
    first.stop()
    clean = make_server(env={"JUPYTER_GPUCKPT_CLEAN_START": "1"}).start()
    assert clean.get("api/sessions") == []
    assert clean.get("api/gpuckpt/kernels")["kernels"] == []
    # What its user starts does not inherit the choice.
    other = clean.open("other.ipynb")
    assert other.run("import os; print(os.getenv('JUPYTER_GPUCKPT_CLEAN_START'))") == "None\n"
    clean.stop()
    last = make_server().start()
    listed = {session["id"] for session in last.get("api/sessions")}
    assert listed == {page.session_id, other.session_id}
    assert last.page(page.kernel_id).run("print(x + 1)") == "42\n"
