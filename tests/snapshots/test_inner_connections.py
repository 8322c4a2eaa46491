"""TCP connections of a tree with itself: they go on over a save, and over a suspend and a resume."""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import msgspec
import pytest

from jupyter_gpuckpt.engine.criu import command_lines as criu_options
from jupyter_gpuckpt.engine.recovery import recover
from jupyter_gpuckpt.engine.tcp import record as tcp_record
from jupyter_gpuckpt.engine.tcp import remake as tcp_remake
from jupyter_gpuckpt.engine.tcp import socket_options as tcp_options
from jupyter_gpuckpt.engine.tcp.unaccepted import Unaccepted
from jupyter_gpuckpt.engine.tree import duplicates, launch
from jupyter_gpuckpt.errors import KernelNotCheckpointable, StoreFull
from jupyter_gpuckpt.host import connections, privileges
from jupyter_gpuckpt.snapshots import save
from jupyter_gpuckpt.wire.manifest_records import Cause

#: What every program here begins with. `step` says something and waits until the test has written a file of that name.
START = """
    import json, os, select, socket, struct, sys, time

    def say(value):
        print(json.dumps(value), flush=True)

    def step(name, value=None):
        say(value)
        while not os.path.exists(name):
            time.sleep(0.005)

    def pair(family=socket.AF_INET, address="127.0.0.1", to=None):
        with socket.socket(family) as listener:
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((address, 0))
            listener.listen()
            client = socket.create_connection((to or address, listener.getsockname()[1]))
            return client, listener.accept()[0]

    def names(*ends):
        return [[end.getsockname(), end.getpeername()] for end in ends]

    def all_of(end, length):
        data = b""
        while len(data) < length:
            part = end.recv(length - len(data))
            if not part:
                break
            data += part
        return data
"""


def go_on(program, step: str):
    """Let the program take a step; returns what it says then."""
    count = len(program.lines(more_than=0))
    (Path(program.spec.cwd) / step).touch()
    return json.loads(program.lines(more_than=count)[count])


def suspended_and_resumed(program):
    # Nobody asks for it: kernels that would lose something are left alone.
    saved = program.save(stop=True, cause=Cause.IDLE)
    assert not saved.warnings
    assert not program.resume(saved.manifest.info.snapshot_id).warnings


PAIRS = (
    START
    + """
    pairs = {
        "IPv4": pair(),
        "IPv6": pair(socket.AF_INET6, "::1"),
        "both": pair(socket.AF_INET6, "::", "127.0.0.1"),
    }
    before = {}
    for kind, (client, server) in pairs.items():
        client.sendall(b"to the server, " * 3)
        server.sendall(b"to the client, " * 2)
        before[kind] = names(client, server)
    step("look", before)
    after = {}
    for kind, (client, server) in pairs.items():
        got = [all_of(server, 45).decode(), all_of(client, 30).decode()]
        client.sendall(b"more"), server.sendall(b"again")
        after[kind] = [names(client, server), got, all_of(server, 4).decode(), all_of(client, 5).decode()]
    step("end", after)
"""
)


def test_a_connection_goes_on_with_what_was_on_its_way(run) -> None:
    program = run(PAIRS)
    before = json.loads(program.lines()[0])
    program.save()
    for _ in range(2):
        suspended_and_resumed(program)
    after = go_on(program, "look")
    for kind in ("IPv4", "IPv6", "both"):
        ends, got, more, again = after[kind]
        assert ends == before[kind], kind
        assert got == ["to the server, " * 3, "to the client, " * 2], kind
        assert (more, again) == ("more", "again"), kind


ENDINGS = (
    START
    + """
    half, other_half = pair()
    half.sendall(b"the last words"), half.shutdown(socket.SHUT_WR)
    left, closed = pair()
    closed.sendall(b"answer, then closed"), closed.close()
    deaf, speaker = pair()
    deaf.shutdown(socket.SHUT_RD)
    asking, answering = pair()
    asking.shutdown(socket.SHUT_WR), answering.sendall(b"both have ended"), answering.close()
    step("look")
    found = {"half": all_of(other_half, 100).decode(), "asking": all_of(asking, 100).decode()}
    other_half.sendall(b"still heard")
    found["back"] = all_of(half, 11).decode()
    found["left"] = all_of(left, 100).decode()
    found["deaf"] = all_of(deaf, 1).decode()
    deaf.sendall(b"can speak")
    found["speaker"] = all_of(speaker, 9).decode()
    try:
        half.send(b"x")
    except BrokenPipeError:
        found["sent all"] = True
    step("end", found)
"""
)


def test_a_connection_that_one_side_has_ended_is_ended_by_that_side_only(run) -> None:
    program = run(ENDINGS)
    program.lines()
    suspended_and_resumed(program)
    assert go_on(program, "look") == {
        "half": "the last words",
        "asking": "both have ended",
        "back": "still heard",
        "left": "answer, then closed",
        "deaf": "",
        "speaker": "can speak",
        "sent all": True,
    }


PROCESSES = (
    START
    + """
    client, server = pair()
    poll = select.epoll()
    edge = select.epoll()
    server.setblocking(False)
    poll.register(server, select.EPOLLIN)
    edge.register(server, select.EPOLLIN | select.EPOLLET)
    child = os.fork()
    if child == 0:
        # It echoes what it gets.
        server.close()
        while data := client.recv(100):
            client.sendall(b"echo " + data)
        os._exit(0)
    client.close()
    step("look")
    found = [poll.poll(0), edge.poll(0)]
    for word in (b"one", b"two"):
        server.sendall(word)
        found += [[number == server.fileno() for number, _ in p.poll(100)] for p in (poll, edge)]
        found.append(server.recv(100).decode())
    try:
        server.recv(1)
    except BlockingIOError:
        found.append("would block")
    server.close()
    os.waitpid(child, 0)
    step("end", found)
"""
)


def test_a_connection_of_two_processes_and_its_places_in_epoll_go_on(run) -> None:
    program = run(PROCESSES)
    program.lines()
    suspended_and_resumed(program)
    assert go_on(program, "look") == [
        *([], []),
        *([True], [True], "echo one"),
        *([True], [True], "echo two"),
        "would block",
    ]


OPTIONS = (
    START
    + """
    SHOWN = {
        "nodelay": (6, 1), "keepalive": (1, 9), "idle": (6, 4), "interval": (6, 5), "count": (6, 6),
        "timeout": (6, 18), "tos": (0, 1), "sndbuf": (1, 7), "rcvbuf": (1, 8), "chosen": (1, 72),
        "lowat": (1, 18), "reuse": (1, 2), "priority": (1, 12), "oob": (1, 10),
    }

    def shown(end):
        found = {name: end.getsockopt(*key) for name, key in SHOWN.items()}
        found["linger"] = list(end.getsockopt(1, 13, 8))
        found["receive timeout"] = list(end.getsockopt(1, 20, 16))
        found["congestion"] = end.getsockopt(6, 13, 16).decode()
        return found

    client, server = pair()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in (("keepalive", 1), ("idle", 77), ("interval", 7), ("count", 3), ("timeout", 4321), ("tos", 16),
                        ("sndbuf", 50000), ("rcvbuf", 30000), ("lowat", 3), ("reuse", 1), ("priority", 2), ("oob", 1)):
        client.setsockopt(*SHOWN[name], value)
    client.setsockopt(1, 13, struct.pack("ii", 1, 5))
    client.setsockopt(1, 20, struct.pack("qq", 2, 500000))
    client.setsockopt(6, 13, b"reno")
    server.setblocking(False)
    step("look", [shown(client), server.getsockopt(1, 2), server.getblocking()])
    step("end", [shown(client), server.getsockopt(1, 2), not os.get_blocking(server.fileno()) is True])
"""
)


def test_a_connection_keeps_its_options(run) -> None:
    program = run(OPTIONS)
    before = json.loads(program.lines()[0])
    program.save()
    suspended_and_resumed(program)
    after = go_on(program, "look")
    assert after[0] == before[0]
    assert after[1] == before[1]
    assert after[2] is True


FULL = (
    START
    + """
    import hashlib, random
    data = random.Random(1).randbytes(64 << 20)

    def fill(end):
        end.setblocking(False)
        sent = 0
        try:
            while True:
                sent += end.send(data[sent:sent + (1 << 20)])
        except BlockingIOError:
            end.setblocking(True)
        return sent

    free, chosen = pair(), pair()
    for end in chosen:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20000)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 60000)
    lengths = [[fill(end) for end in both] for both in (free, chosen)]
    step("look", lengths)
    found = []
    for both, ((first, second)) in zip((free, chosen), lengths):
        found += [all_of(both[1], first) == data[:first], all_of(both[0], second) == data[:second]]
        for end in both:
            end.setblocking(False)
            try:
                end.recv(1)
            except BlockingIOError:
                found.append("nothing more")
    found.append(chosen[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
    step("end", found)
"""
)


@contextmanager
def without_net_admin() -> Iterator[None]:
    """Give up the right to exceed limits of the network, in this thread (man 2 capset)."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("=Ii", 0x20080522, 0)
    before = ctypes.create_string_buffer(24)
    assert not libc.capget(header, before)
    effective, *others = struct.unpack("=6I", before.raw)
    assert not libc.capset(header, struct.pack("=6I", effective & ~(1 << 12), *others))
    try:
        yield
    finally:
        assert not libc.capset(header, before)


@pytest.mark.parametrize("privileged", [True, False])
def test_full_queues_are_kept_both_ways(run, privileged) -> None:
    program = run(FULL)
    lengths = json.loads(program.lines()[0])
    assert min(lengths[0]) > 1 << 20
    with nullcontext() if privileged else without_net_admin():
        suspended_and_resumed(program)
    one = [True, True, "nothing more", "nothing more"]
    assert go_on(program, "look") == [*one, *one, 40000]


STREAMS = (
    START
    + """
    import array, threading

    def send(end):
        start = 0
        while True:
            for length in (1, 1000, 100000):
                end.sendall(array.array("Q", range(start, start + length)).tobytes())
                start += length

    def receive(end, name):
        start, rest, said = 0, b"", 0.0
        while part := end.recv(400000):
            rest += part
            count = len(rest) // 8
            assert array.array("Q", rest[:count * 8]) == array.array("Q", range(start, start + count))
            start, rest = start + count, rest[count * 8:]
            if time.monotonic() > said + 0.05:
                said = time.monotonic()
                say([name, start])
            if not os.path.exists("fast"):
                time.sleep(0.01)

    client, server = pair()
    child = os.fork()
    own, other = (client, server) if child else (server, client)
    other.close()
    threading.Thread(target=send, args=(own,), daemon=True).start()
    receive(own, bool(child))
    say("ended")
"""
)


def test_streams_at_full_speed_lose_nothing(run) -> None:
    program = run(STREAMS)
    program.lines(more_than=20)
    suspended_and_resumed(program)
    (Path(program.spec.cwd) / "fast").touch()
    # Far enough behind what was on its way.
    count = len(program.lines()) + 10
    for more in itertools.count(10):
        found = [json.loads(line) for line in program.lines(more_than=count + more)]
        assert "ended" not in found
        if all([name for name, _ in found[count:]].count(end) >= 5 for end in (True, False)):
            break


def test_an_option_that_was_changed_for_a_moment_is_put_back_after_a_crash(run) -> None:
    program = run(FULL)
    program.lines()
    end = connections.survey(launch.pids(program.tree)).inner[0].ends[0]
    journal = program.tree.inside(tcp_record._JOURNAL)
    with duplicates.duplicate_socket(end.pid, end.descriptor) as same:
        mark = tcp_record._Mark(end.pid, end.descriptor, int(end.row.inode), 1)
        journal.write_bytes(msgspec.json.encode(mark))
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1000)
        recover(program.tree)
        assert same.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
    assert not journal.exists()


WAITING = (
    START
    + """
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    name = client.getsockname()
    step("look", name)
    server, peer = listener.accept()
    client.sendall(b"hello")
    step("end", [name == peer, names(client, server) == [[name, listener.getsockname()], [listener.getsockname(), name]],
                 all_of(server, 5).decode()])
"""
)


def test_a_connection_that_nobody_has_accepted_can_still_be_accepted(run) -> None:
    program = run(WAITING)
    program.lines()
    suspended_and_resumed(program)
    assert go_on(program, "look") == [True, True, "hello"]


HANDED_ON = (
    START
    + """
    first, second = pair(), pair()
    left, right = socket.socketpair()
    socket.send_fds(left, [b"x"], [first[1].fileno()])  # on its way, and here as well
    if not os.fork():
        while not os.path.exists("look"):
            time.sleep(0.005)
        os.set_blocking(second[1].fileno(), False)
        open("set", "w").close()
        sys.exit()
    first[0].sendall(b"hello")
    step("look")
    with socket.socket(fileno=socket.recv_fds(right, 1, 1)[1][0]) as same:
        found = [all_of(same, 5).decode()]
    while not os.path.exists("set"):
        time.sleep(0.005)
    step("end", [*found, os.get_blocking(second[1].fileno())])
"""
)


def test_an_end_that_several_have_is_one_open_file(run) -> None:
    program = run(HANDED_ON)
    program.lines()
    suspended_and_resumed(program)
    assert go_on(program, "look") == ["hello", False]


#: A server that answers one request at a time, busy with the first; three clients have sent theirs, one has said that it says nothing
#: more, and one more has only connected.
BUSY = (
    START
    + """
    import http.server, threading, urllib.request
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            began.append(True)
            while self.path == "/slow" and not os.path.exists("look"):
                time.sleep(0.005)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body[::-1])
        def log_message(self, *words):
            pass
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    answers, began = {}, []
    def ask(name, data):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{name}", data)
        answers[name] = urllib.request.urlopen(request).read() == data[::-1]
    clients = [threading.Thread(target=ask, args=("slow", b"x"))]
    clients += [threading.Thread(target=ask, args=(f"waiting-{n}", os.urandom(length))) for n, length in enumerate((10, 30_000, 300_000))]
    def until_they_wait(count, sent):
        while True:
            rows = [line.split() for line in open("/proc/net/tcp")]
            rows = [row for row in rows if row[1].endswith(f":{port:04X}") and row[9] == "0" and row[3] in ("01", "08")]
            if (len(rows), sum(not row[4].endswith(":00000000") for row in rows)) == (count, sent):
                return
            time.sleep(0.005)
    clients[0].start()
    while not began:
        time.sleep(0.005)
    for client in clients[1:]:
        client.start()
    until_they_wait(3, 3)
    silent = socket.create_connection(("127.0.0.1", port))
    ended = socket.create_connection(("127.0.0.1", port))
    ended.sendall(b"POST /ended HTTP/1.0\\r\\nContent-Length: 3\\r\\n\\r\\nabc")
    ended.shutdown(socket.SHUT_WR)
    until_they_wait(5, 4)
    step("look", port)
    for client in clients:
        client.join()
    silent.sendall(b"POST /silent HTTP/1.0\\r\\nContent-Length: 3\\r\\n\\r\\ndef")
    def rest(end):
        with end.makefile("rb") as file:
            return file.read()[-3:].decode()
    step("end", [sorted(answers.items()), rest(ended), rest(silent)])
"""
)


def assert_busy_server_answers(program) -> None:
    answers, ended, silent = go_on(program, "look")
    assert answers == [["slow", True], *([f"waiting-{n}", True] for n in range(3))]
    assert [ended, silent] == ["cba", "fed"]


def test_what_was_sent_to_a_busy_server_arrives_after_a_resume(run) -> None:
    program = run(BUSY)
    program.lines()
    program.save()
    for _ in range(2):
        suspended_and_resumed(program)
    assert_busy_server_answers(program)


def test_a_suspend_that_is_refused_leaves_what_was_sent_to_a_busy_server(run, monkeypatch) -> None:
    program = run(BUSY)
    program.lines()
    monkeypatch.setattr(save, "rehearse", lambda *words: ["Something is missing."])
    with pytest.raises(KernelNotCheckpointable, match="Something is missing"):
        program.save(stop=True)
    assert_busy_server_answers(program)


def test_a_commit_that_fails_ends_unaccepted_connections_only(run, monkeypatch) -> None:
    program = run(BUSY)
    [port] = map(json.loads, program.lines())

    def full(unaccepted, connections):
        original(unaccepted, connections)
        raise StoreFull("There is no room.")

    original = Unaccepted.take
    monkeypatch.setattr(Unaccepted, "take", full)
    with pytest.raises(StoreFull):
        program.save(stop=True)
    monkeypatch.undo()
    assert program.store.snapshots() == []
    # The one that was accepted goes on.
    found = connections.survey(launch.pids(program.tree))
    assert [
        inner.waiting
        for inner in found.inner
        if port in inner.ends[0].row.local + inner.ends[0].row.remote
    ] == [False]


SEVERAL_LISTENERS = (
    START
    + """
    listeners, clients = [], []
    for _ in range(3):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", listeners[0].getsockname()[1] if listeners else 0))
        listener.listen()
        listener.settimeout(0)
        listeners.append(listener)
    for number in range(20):
        clients.append(socket.create_connection(listener.getsockname()))
        clients[-1].sendall(b"%02d" % number)
    step("look")
    found = []
    for listener in listeners:
        while select.select([listener], [], [], 0)[0]:
            accepted = listener.accept()[0]
            accepted.settimeout(5)
            found.append(int(accepted.recv(2)))
    step("end", sorted(found))
"""
)


def test_what_was_sent_to_listeners_that_share_a_port_arrives_after_a_resume(run) -> None:
    program = run(SEVERAL_LISTENERS)
    program.lines()
    suspended_and_resumed(program)
    assert go_on(program, "look") == [*range(20)]


URGENT = (
    START
    + """
    client, server = pair()
    client.send(b"!", socket.MSG_OOB)
    step("look", [client.getsockname()[1], server.getsockname()[1]])
    step("end", server.recv(1).decode())
"""
)


def test_what_cannot_be_kept_is_named_and_no_reason_for_an_idle_suspend(run) -> None:
    program = run(URGENT)
    ports = "|".join(map(str, json.loads(program.lines()[0])))
    with pytest.raises(KernelNotCheckpointable, match=f"127.0.0.1:({ports})"):
        program.save(stop=True, cause=Cause.IDLE)
    pid = program.tree.kernel_pid
    saved = program.save(stop=True)
    [warning] = saved.warnings
    assert re.search(rf"\(process {pid}\) with 127.0.0.1:({ports})", warning)
    program.resume(saved.manifest.info.snapshot_id)
    assert go_on(program, "look") == ""


def test_more_than_criu_can_inherit_are_named(run, monkeypatch) -> None:
    """Without a privilege it is some hundreds; who has it has no such limit."""
    program = run(PAIRS)
    program.lines()
    monkeypatch.setattr(criu_options, "max_inherited_descriptors", lambda: 5)
    saved = program.save(stop=True)
    [warning] = saved.warnings
    assert "there are too many" in warning
    assert saved.manifest.info.reason == "suspend"
    assert len(saved.manifest.connections) == 2
    monkeypatch.setattr(criu_options, "max_inherited_descriptors", lambda: 3)
    warnings = program.resume(saved.manifest.info.snapshot_id).warnings
    assert len(warnings) == 2
    assert all("was closed" in warning for warning in warnings)


@contextmanager
def taken(ports: list[int]) -> Iterator[None]:
    with ExitStack() as held:
        for port in ports:
            with suppress(OSError):  # somebody else has it
                held.enter_context(socket.create_server(("127.0.0.1", port), reuse_port=False))
        yield


def test_a_connection_whose_ports_are_taken_gets_others(run) -> None:
    program = run(PAIRS)
    before = json.loads(program.lines()[0])
    saved = program.save(stop=True)
    own, peer = before["IPv4"][0]
    with taken([own[1], peer[1]]):
        assert not program.resume(saved.manifest.info.snapshot_id).warnings
        after = go_on(program, "look")
    assert after["IPv4"][1:] == [["to the server, " * 3, "to the client, " * 2], "more", "again"]
    assert after["IPv4"][0] != before["IPv4"][0]
    assert after["IPv6"][0] == before["IPv6"]


def linger_on(port: int) -> None:
    """Have something linger on a port for a minute: a connection to another program, which this side has ended first."""
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket() as client:
        tcp_options.choose_port_later(client, port)
        client.connect(other.getsockname())
        served, _ = other.accept()
        client.close()
        assert not served.recv(1)
        served.close()


def test_what_lingers_on_a_client_s_port_is_no_obstacle(run) -> None:
    """Linux gives one port to connections of many programs, as long as they lead to different places."""
    program = run(PAIRS)
    before = json.loads(program.lines()[0])
    saved = program.save(stop=True)
    (_, port), _ = before["IPv4"][0]
    linger_on(port)
    assert not program.resume(saved.manifest.info.snapshot_id).warnings
    after = go_on(program, "look")
    assert after["IPv4"][0] == before["IPv4"]


def test_what_lingers_where_nobody_has_accepted_a_connection_yet_is_no_obstacle(run) -> None:
    program = run(WAITING)
    _, port = json.loads(program.lines()[0])
    saved = program.save(stop=True)
    linger_on(port)
    assert not program.resume(saved.manifest.info.snapshot_id).warnings
    assert go_on(program, "look") == [True, True, "hello"]


def test_two_copies_have_connections_of_their_own(run) -> None:
    program = run(PAIRS)
    program.lines()
    saved = program.save()
    first = program.tree
    try:
        program.resume(saved.manifest.info.snapshot_id)
        count = len(program.lines())
        (Path(program.spec.cwd) / "look").touch()
        found = [json.loads(line) for line in program.lines(more_than=count + 1)[count:]]
    finally:
        launch.kill(first)
    for after in found:
        for kind in ("IPv4", "IPv6", "both"):
            assert after[kind][1:] == [
                ["to the server, " * 3, "to the client, " * 2],
                "more",
                "again",
            ]
    assert found[0]["IPv4"][0] != found[1]["IPv4"][0]


def test_a_snapshot_of_a_kernel_that_ran_on_and_ended_has_its_connections(run) -> None:
    program = run(PAIRS)
    before = json.loads(program.lines()[0])
    saved = program.save()
    go_on(program, "look")
    launch.kill(program.tree)
    (Path(program.spec.cwd) / "look").unlink()
    assert not program.resume(saved.manifest.info.snapshot_id).warnings
    after = go_on(program, "look")
    assert after["IPv4"][1:] == [["to the server, " * 3, "to the client, " * 2], "more", "again"]
    # What lingers of the connection is in the way for a minute, unless one may end it: then a port is another.
    if privileges.suffice():
        assert after["IPv4"][0] == before["IPv4"]


def test_a_suspend_rehearses_making_the_connections_anew(run, monkeypatch) -> None:
    program = run(PAIRS)
    before = json.loads(program.lines()[0])

    def no_room(*_):
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    # A machine without room for what is in the queues cannot be had in any other way.
    monkeypatch.setattr(tcp_remake, "_send", no_room)
    with pytest.raises(KernelNotCheckpointable, match="No buffer space"):
        program.save(stop=True, cause=Cause.IDLE)
    after = go_on(program, "look")
    for kind, ends in before.items():
        assert after[kind] == [
            ends,
            ["to the server, " * 3, "to the client, " * 2],
            "more",
            "again",
        ]
