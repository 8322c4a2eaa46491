"""Ports, addresses and names of sockets that are in use, or do not exist, where a snapshot is resumed: beside the kernel, or elsewhere."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from jupyter_gpuckpt.errors import ThawFailed
from jupyter_gpuckpt.host import processes

#: Prints the names of its socket, and whether data goes through it.
CODE = """
    import os, socket, sys, time
    stream, datagram, packets = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET
    {code}
    n = 0
    while True:
        n += 1
        print(n, [one.getsockname() for one in sockets], works(), flush=True)
        time.sleep(0.01)
"""
UDP = """
    sockets = [socket.socket(socket.AF_INET, datagram)]
    {begin}
    other = socket.socket(socket.AF_INET, datagram)
    def works():
        other.sendto(b"x", ("127.0.0.1", sockets[0].getsockname()[1]))
        return sockets[0].recv(1)
"""
BOUND_UDP = UDP.format(begin='sockets[0].bind(("127.0.0.1", 0))')
USED_UDP = UDP.format(begin='sockets[0].sendto(b"x", ("127.0.0.1", 9))')
CONNECTED_UDP = """
    sockets = [socket.socket(socket.AF_INET, datagram)]
    sockets[0].connect(("127.0.0.1", 9))
    works = lambda: sockets[0].getpeername()
"""
BOUND_TCP = """
    sockets = [socket.socket()]
    sockets[0].bind(("127.0.0.1", 0))
    works = lambda: None
"""
CHOSEN_NAME = """
    sockets = [socket.socket(socket.AF_UNIX, datagram)]
    sockets[0].bind("")
    other = socket.socket(socket.AF_UNIX, datagram)
    def works():
        other.sendto(b"x", sockets[0].getsockname())
        return sockets[0].recv(1)
"""


def started(run, code):
    """Start a program with this code, and wait until it has printed a line."""
    program = run(CODE.format(code=code.strip()))
    program.fresh_line()
    return program


def own_address(network):
    """Return an IPv4 address in a network of 16 bits that no other test process takes."""
    number = os.getpid() % 60000
    return f"{network}.{number // 250}.{number % 250 + 1}"


@pytest.mark.parametrize("code", [BOUND_UDP, USED_UDP, CONNECTED_UDP, BOUND_TCP, CHOSEN_NAME])
def test_a_snapshot_is_resumed_beside_the_kernel_whose_socket_has_the_name(run, code):
    program = started(run, code)
    first, snapshot = program.tree, program.save().manifest.info.snapshot_id
    program.resume(snapshot)
    count = len(program.lines())
    lines = program.lines(more_than=count + 10)[count:]
    assert len({line.split(maxsplit=1)[1] for line in lines}) == 2, "each has a socket of its own"
    assert processes.alive(first.kernel_pid)
    assert processes.alive(program.tree.kernel_pid)


@pytest.mark.parametrize("kind", ["stream", "datagram", "packets"])
def test_a_name_that_another_program_has_is_named(run, kind):
    """A program that chose a name tells others of it, so it gets no other name."""
    name = f"gpuckpt-{secrets.token_hex(8)}"
    code = f"""
    sockets = [socket.socket(socket.AF_UNIX, {kind})]
    sockets[0].bind("\\0{name}")
    {kind} == datagram or sockets[0].listen()
    works = lambda: None
"""
    program = started(run, code)
    first, snapshot = program.tree, program.save(stop=True).manifest.info.snapshot_id
    types = {"stream": socket.SOCK_STREAM, "datagram": socket.SOCK_DGRAM}
    with socket.socket(socket.AF_UNIX, types.get(kind, socket.SOCK_SEQPACKET)) as other:
        other.bind(f"\0{name}")
        with pytest.raises(ThawFailed, match=f"The name @{name} of a unix socket"):
            program.resume(snapshot)
    program.resume(snapshot)
    program.fresh_line()
    assert program.tree != first


class Addresses:
    """An IPv4 and an IPv6 address of this machine, until they are taken away, as on another machine."""

    def __init__(self, removal: ExitStack) -> None:
        self.both = [own_address("10.77"), f"fd77::{os.getpid() % 60000:x}"]
        self._removal = removal
        for address in self.both:
            subject = [f"{address}/{128 if ':' in address else 32}", "dev", "lo"]
            if subprocess.run(["ip", "addr", "add", *subject], check=False).returncode:
                pytest.skip("no address can be added here")
            removal.callback(subprocess.run, ["ip", "addr", "del", *subject], check=False)

    def leave(self) -> None:
        """Take the addresses away."""
        self._removal.close()


@pytest.fixture
def passing() -> Iterator[Addresses]:
    """Yield addresses of this machine."""
    with ExitStack() as removal:
        yield Addresses(removal)


def listener(family, address):
    return f"""
    sockets = [socket.socket(socket.{family})]
    sockets[0].bind(("{address}", 0))
    sockets[0].listen()
    sockets[0].settimeout(10)
    client = socket.create_connection(sockets[0].getsockname()[:2])
    accepted = sockets[0].accept()[0]
    def works():
        client.send(b"x")
        assert accepted.recv(1) == b"x"
        with socket.create_connection(sockets[0].getsockname()[:2]) as new:
            return sockets[0].accept()[0].close()
"""


@pytest.mark.parametrize(
    ("family", "name", "new"),
    [
        ("AF_INET", "{}", "127.0.0.1"),
        ("AF_INET6", "{}", "::1"),
        ("AF_INET6", "::ffff:{}", "::ffff:127.0.0.1"),
    ],
)
def test_servers_on_an_address_of_another_machine_are_on_the_loopback(
    run, passing, family, name, new
):
    address = name.format(passing.both[family == "AF_INET6" and name == "{}"])
    program = started(run, listener(family, address))
    before = program.fresh_line()
    suspended = program.save(stop=True)
    passing.leave()
    resumed = program.resume(suspended.manifest.info.snapshot_id)
    after = program.fresh_line()
    assert after.split(maxsplit=1)[1] == before.split(maxsplit=1)[1].replace(address, new)
    assert any(address in warning and new in warning for warning in resumed.warnings)


#: A function for programs: the other end of a socket, or why there is none.
PEER = """
    def works():
        try:
            return sockets[0].getpeername()
        except OSError as error:
            return error.errno
"""
CONNECTED = """
    sockets = [socket.socket(socket.AF_INET, datagram), socket.socket(socket.AF_INET, datagram)]
    sockets[0].bind(("{0}", 0))
    sockets[0].connect(("127.0.0.1", 9) if {1} else ("{0}", 9))
    sockets[1].bind(("{0}", 0))
"""


@pytest.mark.parametrize("outside", [False, True])
def test_udp_sockets_on_an_address_of_another_machine_come_back(run, passing, outside):
    program = started(run, CONNECTED.format(passing.both[0], outside) + PEER)
    suspended = program.save(stop=True)
    passing.leave()
    program.resume(suspended.manifest.info.snapshot_id)
    assert "127.0.0.1" in program.fresh_line()


def test_a_udp_socket_without_a_route_to_its_destination_comes_back_unconnected(run, passing):
    route = [own_address("10.78") + "/32", "dev", "lo"]
    code = f"""
    sockets = [socket.socket(socket.AF_INET, datagram)]
    sockets[0].connect(("{route[0].removesuffix("/32")}", 9))
"""
    subprocess.run(["ip", "route", "add", *route], check=True)
    try:
        program = started(run, code + PEER)
        suspended = program.save(stop=True)
        subprocess.run(["ip", "route", "replace", "unreachable", route[0]], check=True)
        program.resume(suspended.manifest.info.snapshot_id)
        assert program.fresh_line().split()[-1] == str(errno.ENOTCONN)
    finally:
        subprocess.run(["ip", "route", "flush", route[0]], check=True)


def test_a_connection_from_an_address_of_another_machine_comes_back_closed(run, passing):
    with socket.create_server((passing.both[0], 0)) as server:
        code = f"""
    sockets = []
    client = socket.create_connection({server.getsockname()!r}, source_address=("{passing.both[0]}", 0))
    works = lambda: None
"""
        program = started(run, code)
        suspended = program.save(stop=True)
    passing.leave()
    program.resume(suspended.manifest.info.snapshot_id)
    program.fresh_line()
