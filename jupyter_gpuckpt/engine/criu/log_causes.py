"""Translation of errors in CRIU's log into a cause and a hint for users."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

#: Errors that are harmless where the process lacks CAP_SYS_RESOURCE; they are in every log of a container.
_HARMLESS = re.compile(r"Can't setup RLIMIT_NOFILE|Failed to turn off repair mode|Can't keep kdat")
_ERROR = re.compile(r"Error \((?P<where>[^)]*)\): (?P<text>.*)")

#: Names for users of descriptors without a file (anon_inode), by Linux's names.
_KINDS = {
    "anon_inode:[userfaultfd]": "a userfaultfd",
    "anon_inode:[perf_event]": "a performance counter (perf)",
    "anon_inode:bpf-map": "a BPF map",
    "anon_inode:bpf-prog": "a BPF program",
    "anon_inode:kvm-vm": "a virtual machine (KVM)",
}

#: The cause where CRIU, which traces the first task of the tree, met a stop that it does not expect: Linux reports each SIGCONT
#: that is sent to a traced task as such a stop (man ptrace, PTRACE_EVENT_STOP).
DISTURBED = "Another program sent SIGCONT to the kernel while it was brought back."

_TABLE: list[tuple[str, str, str]] = [
    (
        r"stopped by signal 5: ",
        DISTURBED,
        "Find the program that sends SIGCONT to its processes (a batch system, most likely), then try again.",
    ),
    (
        r"io_uring|Message reply from daemon is trimmed|send_fds failed",
        "The kernel uses io_uring, which CRIU cannot save.",
        "Close what uses io_uring (set UV_USE_IO_URING=0 for node and uvloop) and try again.",
    ),
    (
        r"Can't dump file \d+ of that type \[\d+\] \(\S+ (?P<file>.*)\)",
        "The kernel has {file} open, which CRIU cannot save.",
        "Close it and try again; the details name its descriptor.",
    ),
    (
        r"Transport endpoint is not connected",
        "The kernel has a file open on a file system whose server has ended: it is not connected.",
        "Close that file, unmount the file system and mount it again, then try again.",
    ),
    (
        r"SysVIPC shmem map",
        "A process of the kernel has System V shared memory attached (shmget), which CRIU cannot save.",
        "Detach it, or use POSIX shared memory (multiprocessing.shared_memory), then try again.",
    ),
    (
        r"Can't lookup mount=\d+ for fd=\d+ path=(?P<file>\S+)",
        "The kernel has {file} open, which lies on no file system that it can see (a message queue, or one that was unmounted).",
        "Close it and try again.",
    ),
    (
        r"Can't get rlimit \d+: Operation not permitted",
        "A process of the kernel runs as another user, and CRIU lacks the right to read its limits (CAP_SYS_RESOURCE).",
        "End that process, or start the server with that capability, then try again.",
    ),
    (
        r"External socket is used|Can't dump half of stream unix|half of unix|not connected to.*unix",
        "A process of the kernel is connected to a unix socket of a program outside (a database, ssh-agent, dbus ...).",
        "Close that connection and try again.",
    ),
    (
        r"Unseizable non-zombie|ptrace.*Operation not permitted|Unable to seize",
        "A process of the kernel is being traced by a debugger or strace.",
        "Detach it and try again.",
    ),
    (
        r"Unable to (restore|drop) capabilit|Unable create a network namespace|SO_SNDBUFFORCE|Fail to mount tm",
        "CRIU lacks a capability that it needs.",
        "Run `jupyter gpuckpt doctor`: it names the one that is missing.",
    ),
    (
        r"nested user namespace|Can't dump nested",
        "A child of the kernel lives in a user namespace of its own (a sandboxed browser, a rootless container).",
        "End that child and try again.",
    ),
    (
        r"ctty inheritance detected",
        "A terminal inside the kernel runs a shell that CRIU cannot save (dash).",
        "Use bash in that terminal, or close it.",
    ),
    (
        r"Can't dump that handle",
        "A file or folder that the kernel watches (inotify) was not found.",
        "Stop watching it, or work below a folder that holds it, then try again.",
    ),
    (
        r"Can't pick pipe data",
        "A pipe of the kernel is full of data, and the pipes of this user take all the memory that Linux gives them.",
        "End other programs of this user, or have the limit raised (sysctl fs.pipe-user-pages-soft), then try again.",
    ),
    (
        r"Can't open mapped \[/\[aio\]",
        "The kernel uses asynchronous input and output (libaio), which can be saved for root only.",
        "Close the program that uses it (a database, most likely), then try again.",
    ),
    (
        r"No space left on device",
        "There is no room left for the images.",
        "Free memory or disk space and try again.",
    ),
    (
        r"(fork|clone|thread).*Resource temporarily unavailable",
        "The limit of processes and threads is reached.",
        "End some, or raise the limit (`ulimit -u`, pids.max of the control group, docker --pids-limit), then try again.",
    ),
    (
        r"Too many open files|Can't make pipe|Can't chose service_fd_base",
        "The limit of open files is too low for a kernel of this size.",
        "Raise the hard limit (`ulimit -Hn`, docker --ulimit nofile=1048576) for the server.",
    ),
    (
        r"ghost file .* size, increase limit|Can't dump ghost file",
        "A deleted file that the kernel has open is too large.",
        "Close it or raise the ghost limit.",
    ),
    (
        r"nvidia|handle_device_vma|Can't handle non-regular mapping|Can't lookup mount.*(/dev/nvidia|nvidia)",
        "A process of the kernel has GPU memory mapped that was not released before the dump.",
        "End child processes that share GPU memory (CUDA IPC) and try again.",
    ),
    (
        r"File (?P<file>\S+) has bad size",
        "The file {file} changed since the snapshot.",
        "Put the old version of the file (or of the package it belongs to) back.",
    ),
    (
        r"File (?P<file>\S+) has bad build-ID",
        "The program or library {file} is not the one that the kernel used.",
        "Install the version of its package that was there when the snapshot was taken.",
    ),
    (
        r"File (?P<file>\S+) has bad mode",
        "The permissions of {file} changed since the snapshot.",
        "Put them back as they were.",
    ),
    (
        r"Can't open file (?P<file>\S+) on restore|Can't open (?P<file2>\S+) on restore",
        "The file {file} is gone.",
        "Put it back; the kernel had it open or mapped.",
    ),
    (
        r"Can't open cwd|Can't chdir|files\.c.*cwd",
        "The working directory of a process of the kernel is gone.",
        "Create it again.",
    ),
    (
        r"Can't bind inet socket|Address already in use",
        "A network port that the kernel listens on is taken.",
        "End the program that uses it and try again.",
    ),
    (
        r"Can't fork for \d+: File exists",
        "A process number of the kernel is taken.",
        "Try again.",
    ),
    (
        r"Unable to set a monotonic clock offset|time namespace",
        "The clock of the kernel cannot be set: the right CAP_SYS_TIME or CAP_SYS_ADMIN is missing.",
        "Run `jupyter gpuckpt doctor`.",
    ),
    (
        r"CPU (instruction )?capabilities do not match",
        "This machine's processor lacks instructions that the kernel uses.",
        "Resume on a machine with the same or a newer processor.",
    ),
    (
        r"Cannot allocate memory|Out of memory",
        "There is not enough memory.",
        "Free memory and try again.",
    ),
]


class Diagnosis(msgspec.Struct, frozen=True):
    """A diagnosis of a log: a cause and a hint for users, and the lines on which they are based."""

    cause: str
    hint: str
    details: str


def diagnose(log: Path, *, errors: str = "", fallback: str) -> Diagnosis:
    """Find the cause of a failure in a CRIU log; a missing log is no error.

    `errors`: the standard error of CRIU or of the programs that started it. `fallback` is the cause if
    none is known. The details are never empty.
    """
    text = _read(log)
    lines = _errors(text) + errors.splitlines()
    details = "\n".join(lines[-12:]) or text[-2000:].strip() or fallback
    for line in lines:
        for pattern, cause, hint in _TABLE:
            found = re.search(pattern, line)
            if found:
                names = {k: v for k, v in found.groupdict().items() if v}
                file = names.get("file") or names.get("file2") or ""
                file = _KINDS.get(file, file)
                return Diagnosis(cause.format(file=file), hint, details)
    return Diagnosis(
        fallback, "The details hold the end of CRIU's log; please report them.", details
    )


def has_errors(log: Path) -> bool:
    """Return whether CRIU has logged an error that is not known to be harmless."""
    return bool(_errors(_read(log)))


def _read(log: Path) -> str:
    try:
        return log.read_text(errors="replace")
    except OSError:
        return ""


def _errors(text: str) -> list[str]:
    return [
        line.strip()
        for line in text.splitlines()
        if "Error (" in line and not _HARMLESS.search(line)
    ]
