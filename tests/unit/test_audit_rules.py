"""What may differ after a resume by its nature has a bound: a value beyond it is found, and told in words."""

from __future__ import annotations

import os
import socket

import pytest

from jupyter_gpuckpt.engine.audit import asked_facts, descriptor_facts, socket_facts
from jupyter_gpuckpt.engine.audit.comparison import RULES, Changes, differences
from jupyter_gpuckpt.engine.audit.fact_records import Facts, ProcessFacts
from jupyter_gpuckpt.engine.audit.wording import sentences
from tests.conftest import only_for_root

USR1, ALRM, CHLD = (1 << (number - 1) for number in (10, 14, 17))
ABSOLUTE = {"clockid": "0", "settime flags": "01"}
STREAM, UNIX = {"socket": "2 1 0"}, {"socket": "1 1 0"}


def mask(*signals):
    return f"{sum(signals):016x}"


#: Rule -> facts of the part, those of the process, and values: before, right afterwards, beyond the bound.
BOUNDS = {
    "ShdPnd": ({}, {"SigCgt": mask(ALRM)}, mask(CHLD, ALRM), mask(), mask(USR1)),
    "SigPnd": ({}, {"SigCgt": mask(ALRM, USR1)}, mask(ALRM, USR1), mask(USR1), mask(ALRM)),
    "SigBlk": ({}, {"SigCgt": mask(ALRM)}, mask(USR1), mask(USR1, ALRM), mask(ALRM)),
    "flags": ({}, {}, "022700002", "02500002", "02502002"),
    "option 6 2": ({"state": "1"}, {}, "00800000", "e57f0000", None),
    "option 41 26": ({"state": "1"}, {}, "", "01000000", None),
    "unread": ({"state": "1"}, {}, "10", "5", None),
    "local": (STREAM, {}, "127.0.0.1 5000", "127.0.0.1 6000", "127.0.0.1 "),
    "ends": ({**UNIX, "local": "/own"}, {}, "", "8208", "8"),
    "state": ({}, {}, "4", "5", "8"),
    "remote": (UNIX, {}, "/socket", "", "/other"),
    "fires": (ABSOLUTE, {}, "10000000000", "10050000000", "10200000000"),
    "it_value": ({}, {}, "(100, 5)", "(99, 7)", "(100, 6)"),
    "ticks": ({}, {}, "3", "4", "2"),
    "session keyring": ({}, {}, "3", "4", "2"),
    "Uid": ({"CapPrm": "0"}, {}, "1001 1001 1001", "1002 1002 1002", "1002 1003 1002"),
    "Gid": ({"CapPrm": "0"}, {}, "1001 1001", "1002 1002", "1002"),
    "Groups": ({"CapPrm": "0"}, {}, "4 1001", "1002", None),
    "cpuid": ({}, {}, "1", "", "0"),
    "dumpable": ({}, {}, "1", "", "0"),
    "machine check policy": ({}, {}, "2", "", "1"),
    "timer slack": ({}, {}, "50000", "", "1"),
    "THP_enabled": ({}, {}, "1", "", "0"),
    "untag_mask": ({}, {}, "0xffffffffffffffff", "", "0x0"),
    "secure bits": ({"CapPrm": "0"}, {}, "", "3", "7"),
    "entries": (
        {"link": "socket:"},
        {},
        "tfd: 9 events: 19 data: 9",
        "tfd: 3 events: 19 data: 9",
        "tfd: 3 events: 1d data: 9",
    ),
    "link": ({}, {}, "/data/a", "/copies/a", "pipe:"),
    "pos": ({"link": "/gone"}, {}, "10", "0", "9"),
}


def facts(fact, value, others, of_process):
    values = {**others, fact: value} if value else dict(others)
    threads = {1: {"SigBlk": mask(USR1)}}
    return Facts(processes=[ProcessFacts(1, "python", of_process, threads, {3: values})])


def changed(before, after):
    return [one.fact for one in differences(before, after, Changes(["/gone"], ["/own"]))]


def test_every_rule_has_a_bound():
    assert {name.partition(" ")[0] if name == "fires" else name for name in BOUNDS} == set(RULES)


@pytest.mark.parametrize("fact", BOUNDS)
def test_a_value_beyond_the_bound_is_found(fact):
    others, of_process, before, right, wrong = BOUNDS[fact]
    name = "fires at" if fact == "fires" else fact
    old = facts(name, before, others, of_process)
    assert changed(old, facts(name, right, others, of_process)) == []
    if wrong is not None:
        assert changed(old, facts(name, wrong, others, of_process)) == [name]


@pytest.mark.parametrize("fact", ["option 6 2", "option 41 26", "unread"])
@pytest.mark.parametrize("others", [{"state": "10"}, {}], ids=["listener", "datagrams"])
def test_only_connections_agree_with_their_peers(fact, others):
    old = facts(fact, "00800000", others, {})
    assert changed(old, facts(fact, "e57f0000", others, {})) == [fact]


def test_a_timer_may_have_fired_or_fire_next_time():
    once = facts("fires at", "10000000000", ABSOLUTE, {})
    fired = {**ABSOLUTE, "it_value": "(0, 0)"}
    assert changed(once, facts("ticks", "1", fired, {})) == []
    assert changed(once, facts("", "", fired, {})) == ["fires at", "it_value"]
    often = facts("fires at", "10000000000", {**ABSOLUTE, "it_interval": "(3, 0)"}, {})
    assert (
        changed(often, facts("fires at", "16000000001", {**ABSOLUTE, "it_interval": "(3, 0)"}, {}))
        == []
    )
    assert changed(
        often, facts("fires at", "17000000000", {**ABSOLUTE, "it_interval": "(3, 0)"}, {})
    ) == ["fires at"]


def test_a_stranger_s_descriptors_signal_no_other_process():
    values = {"signal owner": "1 1"}
    with socket.socket() as end, pytest.raises(KeyError):
        descriptor_facts.set_of_descriptor(os.getpid(), end.fileno(), "signal owner", values, {})


@pytest.mark.parametrize("fact", ["Uid", "Gid", "Groups"])
def test_root_keeps_its_ids(fact):
    root = {"CapPrm": "1"}
    assert changed(facts(fact, "0", root, {}), facts(fact, "1", root, {})) == [fact]


def test_the_root_of_a_machine_keeps_its_rights():
    assert changed(
        facts("", "", {"CapPrm": "1"}, {}), facts("secure bits", "3", {"CapPrm": "1"}, {})
    ) == ["secure bits"]


def test_ports_are_replaced_one_by_one():
    def sockets(*ports):
        ends = {n: {**STREAM, "local": f"127.0.0.1 {port}"} for n, port in enumerate(ports)}
        return Facts(processes=[ProcessFacts(1, "python", descriptors=ends)])

    assert changed(sockets(1, 2, 1), sockets(3, 4, 3)) == []
    assert changed(sockets(1, 2, 1), sockets(3, 3, 3)) == ["local"]
    assert changed(sockets(1, 2, 1), sockets(3, 4, 5)) == ["local"]


def test_only_names_that_linux_chose_are_replaced():
    def named(name):
        return Facts(
            processes=[ProcessFacts(1, "python", descriptors={3: {**UNIX, "local": name}})]
        )

    assert changed(named("003030303161"), named("003030303162")) == []
    assert changed(named("003030303161"), named("00303030")) == ["local"]


def test_a_listener_keeps_its_name():
    old = facts("local", "/socket", {**UNIX, "option 1 30": "01000000"}, {})
    assert changed(old, facts("", "", {**UNIX, "option 1 30": "01000000"}, {})) == ["local"]


def test_a_connection_that_was_cut_is_not_told_twice():
    old = facts("option 6 1", "01000000", {"state": "1"}, {})
    assert changed(old, facts("", "", {"state": "7"}, {})) == []
    assert changed(old, facts("", "", {"state": "1"}, {})) == ["option 6 1"]


@pytest.mark.parametrize("missing", ["process", "thread", "descriptor"])
def test_what_is_missing_is_found(missing):
    def one(*, with_it):
        parts = {
            "threads": {1: {}} if with_it or missing != "thread" else {},
            "descriptors": {3: {}} if with_it or missing != "descriptor" else {},
        }
        return Facts(
            processes=[ProcessFacts(1, "python", **parts)]
            if with_it or missing != "process"
            else []
        )

    before = one(with_it=True)
    found = differences(before, one(with_it=False), Changes())
    assert [found.fact for found in found] == [missing]
    assert "is missing" in sentences(found, before)[0]


def test_a_stranger_s_facts_break_nothing():
    before = Facts(processes=[ProcessFacts(1, "\x1b[2J", {"SigIgn": "no number", "Umask": "\x07"})])
    after = Facts(processes=[ProcessFacts(1, "python", {"SigIgn": "0", "Umask": "0022"})])
    told = sentences(differences(before, after, Changes()), before)
    assert len(told) == 2
    assert all(text.isprintable() for text in told)


def test_a_stranger_s_facts_reach_no_option_beyond_the_socket():
    with socket.socket() as end:
        # SO_ATTACH_BPF takes a descriptor of the caller, and 64 of level 0 replaces the firewall.
        for fact in ("option 0 64", "option 1 50", "option 6 19"):
            assert not socket_facts.set_of_socket(end, fact, "01000000")
        assert socket_facts.set_of_socket(end, "option 6 1", "01000000")
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_linux_did_not_show_is_not_set():
    assert asked_facts.setting("cpuid", {}) == []
    assert asked_facts.setting("cpuid", {"cpuid": "1"})
    assert asked_facts.setting("memory merge", {})


def test_a_lock_that_is_missing_is_found():
    old = facts("lock POSIX 128 128", "READ", {}, {})
    assert changed(old, facts("", "", {}, {})) == ["lock POSIX 128 128"]


def test_reading_a_socket_keeps_its_error():
    with socket.socket() as closed, socket.socket() as end:
        closed.bind(("127.0.0.1", 0))
        end.setblocking(False)
        end.connect_ex(closed.getsockname())
        socket_facts.of_socket(end)
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def test_other_files_are_not_duplicated(tmp_path):
    # Closing a duplicate of a file could wait for the server of its file system.
    path = tmp_path / "file"
    path.touch()
    assert descriptor_facts.kind_of(str(path)) == ""
    assert descriptor_facts.kind_of("/dev/fuse") == ""
    assert descriptor_facts.kind_of("socket:[1]") == "socket"


def test_reading_a_packet_socket_leaves_its_counters() -> None:
    only_for_root("packet sockets")
    statistics = 6
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as end:
        end.bind(("lo", 3))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"a packet", ("127.0.0.1", 9))
        end.recv(100)
        socket_facts.of_socket(end)
        assert int.from_bytes(end.getsockopt(263, statistics, 8)[:4], "little") > 0
