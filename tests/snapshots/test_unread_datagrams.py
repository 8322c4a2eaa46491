"""Sockets whose unread messages come with control messages (man 3 cmsg), which CRIU refuses: times, addresses, credentials."""

from __future__ import annotations

import json

PROGRAM = """
    import json, os, socket, time
    IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR = 8, 12, 13, 20
    SO_PASSCRED, SO_TIMESTAMP, SO_TIMESTAMPNS = 16, 29, 35

    def udp(family, address, *options):
        end = socket.socket(family, socket.SOCK_DGRAM)
        end.bind((address, 0))
        for level, name in options:
            end.setsockopt(level, name, 1)
        sender = socket.socket(family, socket.SOCK_DGRAM)
        sender.sendto(b"datagram", end.getsockname())
        return sender, end

    def unix(kind, *options):
        sender, end = socket.socketpair(socket.AF_UNIX, kind)
        for name in options:
            end.setsockopt(socket.SOL_SOCKET, name, 1)
        sender.sendall(b"message")
        return sender, end

    inet, inet6 = socket.AF_INET, socket.AF_INET6
    pairs = {
        "addresses": udp(inet, "127.0.0.1", (0, IP_PKTINFO), (0, IP_RECVORIGDSTADDR)),
        "times": udp(inet, "127.0.0.1", (1, SO_TIMESTAMP)),
        "times in ns": udp(inet, "127.0.0.1", (1, SO_TIMESTAMPNS), (0, IP_RECVTTL), (0, IP_RECVTOS)),
        "IPv6": udp(inet6, "::1", (41, 49), (41, 51), (41, 66)),
        "credentials": unix(socket.SOCK_DGRAM, SO_PASSCRED),
        "credentials and times": unix(socket.SOCK_DGRAM, SO_PASSCRED, SO_TIMESTAMP),
        "of a stream": unix(socket.SOCK_STREAM, SO_PASSCRED),
        "of packets": unix(socket.SOCK_SEQPACKET, SO_PASSCRED),
    }
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    right.setsockopt(socket.SOL_SOCKET, SO_PASSCRED, 1)
    kept = os.open("/etc/hostname", os.O_RDONLY)
    socket.send_fds(left, [b"with a file"], [kept])

    def kinds(control):
        return sorted((level, kind) for level, kind, _ in control)

    print(json.dumps("ready"), flush=True)
    while not os.path.exists("read"):
        time.sleep(0.01)
    found = {}
    for name, (sender, end) in pairs.items():
        # What comes after the resume has the same control messages as before.
        try:
            waiting = end.recvmsg(100, 1000, socket.MSG_DONTWAIT)[0].decode()
        except BlockingIOError:
            waiting = None
        if end.family == socket.AF_UNIX:
            sender.sendall(b"new")
        else:
            sender.sendto(b"new", end.getsockname())
        data, control, *_ = end.recvmsg(100, 1000)
        found[name] = [waiting, data.decode(), kinds(control)]
    data, control, *_ = right.recvmsg(100, 1000)
    files = [int.from_bytes(value[:4], "little") for _, kind, value in control if kind == socket.SCM_RIGHTS]
    found["with a file"] = [data.decode(), [os.path.samestat(os.fstat(kept), os.fstat(file)) for file in files]]
    print(json.dumps(found), flush=True)
    time.sleep(1000)
"""


def read(program):
    (program.log.parent / "read").touch()
    return json.loads(program.lines(more_than=1)[1])


def test_sockets_that_ask_for_control_messages_are_saved_with_unread_messages(run) -> None:
    undisturbed, saved, resumed = (run(PROGRAM) for _ in range(3))
    for program in (undisturbed, saved, resumed):
        program.lines()
    expected = read(undisturbed)
    saved.save()
    assert read(saved) == expected
    resumed.resume(resumed.save(stop=True).manifest.info.snapshot_id)
    found = read(resumed)
    assert found["with a file"] == ["with a file", [True]]
    for name in ("credentials", "of a stream", "of packets"):
        assert found[name] == expected[name], name
    assert all(new == "new" for _, new, *_ in map(found.get, expected.keys() - {"with a file"}))


MORE = """
    import os, socket, time
    packets, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for message in (b"one", b"", b"two", b"", b"three"):
        sender.send(message)
    datagrams, other_sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for message in (b"", b"four", b"", b"five"):
        other_sender.send(message)
    nothing = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    reset, other = socket.socketpair()
    reset.send(b"never read")
    other.send(b"before")
    other.close()
    print("ready", flush=True)
    while not os.path.exists("read"):
        time.sleep(0.01)
    found = []
    for end in (packets, datagrams, *nothing):
        try:
            while True:
                found.append(end.recv(10, socket.MSG_DONTWAIT).decode())
        except BlockingIOError:
            continue
    print(" ".join(filter(None, found)), reset.recv(10).decode(), flush=True)
    time.sleep(1000)
"""


def test_messages_after_an_empty_one_and_before_a_reset_are_kept(run) -> None:
    program = run(MORE)
    program.lines()
    program.save()
    program.resume(program.save(stop=True).manifest.info.snapshot_id)
    (program.log.parent / "read").touch()
    assert program.lines(more_than=1)[1] == "one two three four five before"
