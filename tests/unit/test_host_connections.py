"""Which connections processes have, with each other and with others, as the kernel of the operating system lists them."""

import os
import socket
import subprocess
import sys

import pytest

from jupyter_gpuckpt.host import connections


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["v4", "v6"])
def listener(request):
    family, address = request.param
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip(f"{address} is not there")
        listener.listen()
        yield listener


def of(listener, pids):
    """Those of the processes from or to the listener's port."""
    found, port = connections.survey(pids), listener.getsockname()[1]

    def concerned(end):
        return port in {end.row.local.port, end.row.remote.port}

    return connections.Survey(
        [inner for inner in found.inner if concerned(inner.ends[0])],
        [end for end in found.outer if concerned(end)],
        [],
    )


def test_a_connection_with_oneself_is_one_with_two_ends(listener):
    address, port, *_ = listener.getsockname()
    with socket.create_connection((address, port)) as client, listener.accept()[0]:
        found = of(listener, [os.getpid()])
        assert not found.outer
        [inner] = found.inner
        assert {end.row.local.port for end in inner.ends} == {port, client.getsockname()[1]}
        assert not inner.waiting


def test_one_that_nobody_has_accepted_is_waiting_until_then(listener):
    with socket.create_connection(listener.getsockname()[:2]):
        [inner] = of(listener, [os.getpid()]).inner
        assert inner.waiting
        with listener.accept()[0]:
            assert not of(listener, [os.getpid()]).inner[0].waiting


def test_one_whose_other_end_was_closed_has_one_end(listener):
    with socket.create_connection(listener.getsockname()[:2]) as client:
        listener.accept()[0].close()
        [inner] = of(listener, [os.getpid()]).inner
        assert [end.descriptor for end in inner.ends] == [client.fileno()]
        assert not inner.waiting


CONNECTS = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))):
    print("connected", flush=True)
    sys.stdin.read()
"""


def test_one_with_another_process_is_outer_and_names_it(listener):
    address, port, *_ = listener.getsockname()
    words = [sys.executable, "-c", CONNECTS, address, str(port)]
    with (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
        listener.accept()[0],
    ):
        other.stdout.readline()
        for pids in ([os.getpid()], [other.pid]):
            found = of(listener, pids)
            assert not found.inner
            assert [end.pid for end in found.outer] == pids
        shown = f"[{address}]" if ":" in address else address
        assert str(found.outer[0]).endswith(f"(process {other.pid}) with {shown}:{port}")
        assert len(of(listener, [os.getpid(), other.pid]).inner) == 1
        other.stdin.close()


def test_one_that_another_process_opened_is_outer_before_it_is_accepted(listener):
    address, port, *_ = listener.getsockname()
    words = [sys.executable, "-c", CONNECTS, address, str(port)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        found = of(listener, [os.getpid()])
        assert not found.inner
        assert [(end.pid, end.descriptor) for end in found.outer] == [
            (os.getpid(), listener.fileno())
        ]
        [inner] = of(listener, [os.getpid(), other.pid]).inner
        assert inner.waiting
        other.stdin.close()


def test_listening_sockets_are_none(listener):
    found = of(listener, [os.getpid()])
    assert not found.inner
    assert not found.outer


def test_a_process_that_is_gone_has_none():
    assert connections.survey([2**22 + 1]) == ([], [], [])
