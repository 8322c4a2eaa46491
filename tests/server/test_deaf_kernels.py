"""A kernel whose agent does not answer is saved, and nobody waits for an answer that does not come."""

import time

import pytest

from tests.conftest import wait_for

#: Python's lock is held in a call of C's, until the test writes into a pipe.
HOLDING = """
import ctypes, os
os.mkfifo("pipe")
print(ctypes.PyDLL(None).read(os.open("pipe", os.O_RDWR), ctypes.create_string_buffer(1), 1))
"""
#: For two saves: with each question that is not answered and waited for they took 90.
SECONDS = 10.0


@pytest.fixture
def server(clean_server):
    return clean_server


def test_a_kernel_whose_cell_holds_pythons_lock_is_saved_like_another(server):
    page = server.open()
    request = page.execute(HOLDING)
    pipe = server.root / "pipe"
    wait_for(pipe.exists)
    began = time.monotonic()
    server.do("save", page.kernel_id)
    server.do("save", page.kernel_id)
    assert time.monotonic() - began < SECONDS
    pipe.write_text("x")
    assert page.output(request) == "1\n"
    assert page.run("print(2)") == "2\n"
