"""Names for users of what CRIU's messages are about: devices, sockets, descriptors without a file, and the parts of CRIU itself."""

from __future__ import annotations

import re
from pathlib import Path

#: Descriptors without a file (anon_inode), by Linux's names.
_KINDS = {
    "[userfaultfd]": "a userfaultfd",
    "[perf_event]": "a performance counter (perf)",
    "bpf-map": "a BPF map",
    "bpf-prog": "a BPF program",
    "bpf_link": "a BPF program",
    "kvm-vm": "a virtual machine (KVM)",
    "[landlock-ruleset]": "a Landlock ruleset",
    "[fscontext]": "a file system that is being mounted (fsopen)",
    "seccomp notify": "the listener of a seccomp filter",
    "[io_uring]": "an io_uring",
    "sync_file": "a fence of a GPU (sync_file)",
}
_FAMILIES = {
    "15": "a socket for keys of IPsec (AF_KEY)",
    "21": "an RDS socket (AF_RDS)",
    "29": "a CAN socket (AF_CAN)",
    "30": "a TIPC socket (AF_TIPC)",
    "31": "a Bluetooth socket (AF_BLUETOOTH)",
    "38": "a socket for cryptography (AF_ALG)",
    "40": "a socket to a virtual machine's host (AF_VSOCK)",
    "44": "an XDP socket (AF_XDP)",
}
_PROTOCOLS = {"262": "MPTCP", "132": "SCTP", "33": "DCCP", "136": "UDP-Lite"}
_DEVICE = re.compile(r"(?P<kind>chr|blk) (?P<number>\d+:\d+)")
_ANONYMOUS = "anon_inode:"

#: What the files of CRIU's sources are about: each of their messages names one of these, where nothing better is known.
SUBJECTS = {
    "bpfmap": "a BPF map",
    "eventfd": "an eventfd",
    "eventpoll": "an epoll descriptor",
    "fifo": "a named pipe (FIFO)",
    "file-lock": "a file lock or lease",
    "files": "an open file",
    "files-ext": "an open file",
    "files-reg": "an open file",
    "fsnotify": "a watched file or folder (inotify, fanotify)",
    "irmap": "a watched file or folder (inotify, fanotify)",
    "memfd": "a file in memory (memfd)",
    "pidfd": "a descriptor of a process (pidfd)",
    "pipes": "a pipe",
    "page-pipe": "memory",
    "page-xfer": "memory",
    "pagemap": "memory",
    "pagemap-cache": "memory",
    "mem": "memory",
    "shmem": "shared memory",
    "proc_parse": "a process's memory or state in /proc",
    "util": "a process's state in /proc",
    "bfd": "a process's state in /proc",
    "parasite": "a process's memory or state",
    "parasite-syscall": "a process's memory or state",
    "parasite-vdso": "the vDSO of a process",
    "pie-util-vdso": "the vDSO of a process",
    "pie-util-vdso-elf32": "the vDSO of a process",
    "util-vdso": "the vDSO of a process",
    "util-vdso-elf32": "the vDSO of a process",
    "vdso": "the vDSO of a process",
    "pstree": "the tree of processes",
    "seize": "the stop of a process",
    "infect": "the entry into a process",
    "infect-rpc": "the entry into a process",
    "infect-util": "the entry into a process",
    "ptrace": "the entry into a process",
    "aio": "asynchronous input and output (libaio)",
    "cpu": "the processor's state of a process",
    "cr-dump": "a process",
    "shstk": "the shadow stack of a process",
    "kcmp-ids": "what processes share",
    "seccomp": "a seccomp filter",
    "sigact": "the signal handlers of a process",
    "signalfd": "a signalfd",
    "sigaction_compat_pie": "the signal handlers of a process",
    "sigframe": "the processor's state of a process",
    "thread_area": "the processor's state of a process",
    "crtools": "the processor's state of a process",
    "sk-inet": "a network socket",
    "sk-tcp": "a TCP connection",
    "sk-netlink": "a netlink socket",
    "sk-packet": "a packet socket",
    "sk-queue": "unread messages of a socket",
    "sk-unix": "a unix socket",
    "sockets": "a socket",
    "soccr": "a TCP connection",
    "libnetlink": "the list of sockets",
    "timer": "a timer",
    "timerfd": "a timer (timerfd)",
    "timens": "the clocks",
    "tty": "a terminal",
    "tun": "a TUN or TAP device (/dev/net/tun)",
}


def named(what: str) -> str:
    """Return words for something that CRIU names in a message: "chr 10:232", "anon anon_inode:[perf_event]", a path."""
    device = _DEVICE.fullmatch(what)
    if device:
        kind = "char" if device["kind"] == "chr" else "block"
        return _device_name(kind, device["number"]) or f"a device ({kind} {device['number']})"
    what = what.removeprefix("anon ").removeprefix("unknown ")
    if what.startswith(_ANONYMOUS):
        name = what.removeprefix(_ANONYMOUS)
        return _KINDS.get(name, f"a descriptor of Linux ({name.strip('[]')})")
    return what


def family(number: str) -> str:
    """Return words for a socket of a family, by its number (bits/socket.h)."""
    return _FAMILIES.get(number, f"a socket of family {number}")


def protocol(number: str) -> str:
    """Return the name of a network protocol, by its number (netinet/in.h)."""
    return _PROTOCOLS.get(number, f"protocol {number}")


def _device_name(kind: str, number: str) -> str:
    try:
        lines = Path(f"/sys/dev/{kind}/{number}/uevent").read_text().splitlines()
    except OSError:
        return ""
    return next(
        (
            "/dev/" + name
            for key, _, name in (line.partition("=") for line in lines)
            if key == "DEVNAME"
        ),
        "",
    )
