"""Translation of errors in CRIU's log into a cause and a hint for users."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from . import log_subjects

#: Errors that are harmless where the process lacks CAP_SYS_RESOURCE; they are in every log of a container.
_HARMLESS = re.compile(r"Can't setup RLIMIT_NOFILE|Failed to turn off repair mode|Can't keep kdat")
#: A line of CRIU's log: the source file without folder and ending, and the message without the prefix of its part.
_ERROR = re.compile(
    r"Error \((?:[\w./-]*/)?(?P<part>[\w-]+)\.\w+:\d+\): (?:[\w-]+: )?\s*(?P<text>.*)"
)

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
        r"Can't dump file \d+ of that type \[\d+\] \((?P<file>.*)\)",
        "The kernel has {file} open, which CRIU cannot save.",
        "Close it and try again; the details name its descriptor.",
    ),
    (
        r"Transport endpoint is not connected",
        "The kernel has a file open on a file system whose server has ended: it is not connected.",
        "Close that file, unmount the file system and mount it again, then try again.",
    ),
    (
        r"Can't obtain piped data size|Can't get \d+:\d+ opt: Bad file descriptor",
        "The kernel has a descriptor for the name of a pipe or unix socket (O_PATH), which CRIU cannot save.",
        "Close it and try again.",
    ),
    (
        r"Can't get socket filter len",
        "A socket of the kernel has a BPF program attached, which CRIU cannot save.",
        "Detach it (SO_DETACH_BPF), or close the socket, then try again.",
    ),
    (
        r"SysVIPC shmem map",
        "A process of the kernel has System V shared memory attached (shmget), which CRIU cannot save.",
        "Detach it, or use POSIX shared memory (multiprocessing.shared_memory), then try again.",
    ),
    (
        r"/secretmem",
        "A process of the kernel has secret memory (memfd_secret), which no other program may read.",
        "Close and unmap it, or end the process that uses it, then try again.",
    ),
    (
        r"mapfile link .*: Operation not permitted",
        "A process of the kernel has memory mapped that CRIU may not open (secret memory of memfd_secret, or a device's).",
        "Unmap it, or end the process that uses it, then try again.",
    ),
    (
        r"Non-empty write queue on an in-flight socket|Found a closed in-flight socket",
        "A connection to a unix socket of the kernel sent data or was closed before it was accepted, which CRIU cannot save.",
        "Let the program that listens accept it (a busy server does as soon as it can), then try again.",
    ),
    (
        r"Unknown socket collected \(family (?P<family>\d+)\)|Unknown pair family (?P<family2>\d+)",
        "The kernel has {family} open, which CRIU cannot save.",
        "Close it and try again.",
    ),
    (
        r"Unsupported proto (?P<protocol>\d+) for socket",
        "The kernel has a network socket with {protocol} open, which CRIU cannot save.",
        "Close it, or use TCP or UDP (in Go: GODEBUG=multipathtcp=0), then try again.",
    ),
    (
        r"The socket has data to read",
        "A netlink socket of the kernel has messages that were not read, which CRIU cannot save.",
        "Let the program read them, or close the socket, then try again.",
    ),
    (
        r"Control messages in queue|More than 1 SCM|2nd SCM_RIGHTS",
        "A socket of the kernel has an unread message with additional data (a time, an address), which CRIU cannot save.",
        "Let the program read it, then try again.",
    ),
    (
        r"corked dgram socket",
        "A UDP socket of the kernel collects data before it sends it (UDP_CORK), which CRIU cannot save.",
        "Let the program send it, then try again.",
    ),
    (
        r"Zombies? (with threads|thread) (are )?not supported",
        "The main thread of a process of the kernel has ended while its other threads run on, which CRIU cannot save.",
        "End that process (`ps -eLo pid,stat,comm` shows it with Zl), then try again.",
    ),
    (
        r"Individually stopped threads",
        "Some threads of a process of the kernel are stopped and others are not, which CRIU cannot save.",
        "Detach the debugger, or let them run on, then try again.",
    ),
    (
        r"Can't make (VM|FS|FILES|IO) id",
        "Processes of the kernel share a working directory or memory (clone with CLONE_FS ...), which CRIU cannot save.",
        "End one of them (a program that makes processes by clone itself), then try again.",
    ),
    (
        r"tun: |tun\.c:",
        "The kernel has a network device of its own open (/dev/net/tun: a VPN, a virtual machine), which CRIU cannot save.",
        "End the program that uses it, or start it outside of the kernel, then try again.",
    ),
    (
        r"Unknown clock type|No timerfd support|error parsing \[clockid",
        "The kernel has a timer that wakes the machine (timerfd with CLOCK_REALTIME_ALARM ...), which CRIU cannot save.",
        "Close it and try again.",
    ),
    (
        r"PIDFD_THREAD flag",
        "The kernel has a descriptor of a thread open (pidfd with PIDFD_THREAD), which CRIU cannot save.",
        "Close it and try again.",
    ),
    (
        r"pidfd pid .* is not a part of process tree",
        "The kernel has a descriptor of a process outside of it open (pidfd).",
        "Close it and try again.",
    ),
    (
        r"has uprobes vma",
        "A process of the kernel is being watched by probes (uprobes: bpftrace, perf).",
        "End the program that set them, then try again.",
    ),
    (
        r"Escaped/closed fd descriptor",
        "The kernel waits by epoll for a file that it has closed itself, while another process has it open, which CRIU cannot save.",
        "Remove it from the epoll before it is closed, or end the other process, then try again.",
    ),
    (
        r"packetized mode for pipes",
        "The kernel has a pipe in packet mode (O_DIRECT), which CRIU cannot save.",
        "Close it and try again.",
    ),
    (
        r"netlink socket .* (has more than 32 groups|is bound to groups)|Groups above 32",
        "The kernel has a netlink socket with settings that CRIU cannot save.",
        "Close it and try again.",
    ),
    (
        r"In-flight connection on non-listening|Unix socket .* (without|with unreachable) peer|Dangling connection",
        "A unix socket of the kernel is in a state that CRIU cannot save.",
        "Close it, or end the process that has it, then try again.",
    ),
    (
        r"overmounted mounts",
        "The kernel has a file open that is hidden by a file system that was mounted over it.",
        "Close it, or unmount that file system, then try again.",
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
        r"Can't create inotify|Can't add watch for",
        "The limit of watched files and folders (inotify) of this user is reached.",
        "End programs that watch files, or have it raised (sysctl fs.inotify.max_user_instances, max_user_watches), then try again.",
    ),
    (
        r"Can't open mapped \[/\[aio\]",
        "The kernel uses asynchronous input and output (libaio), which can be saved for root only.",
        "Close the program that uses it (a database, most likely), then try again.",
    ),
    (
        r"(clone|unshare|namespace|\bns\b).*No space left on device",
        "The limit of namespaces is reached.",
        "Raise it (sysctl user.max_user_namespaces, user.max_pid_namespaces, user.max_mnt_namespaces), then try again.",
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
        r"File /?(?P<file>.+?) has bad size",
        "The file /{file} changed since the snapshot.",
        "Put the old version of the file (or of the package it belongs to) back.",
    ),
    (
        r"File /?(?P<file>.+?) has bad build-ID",
        "The program or library /{file} is not the one that the kernel used.",
        "Install the version of its package that was there when the snapshot was taken.",
    ),
    (
        r"File /?(?P<file>.+?) has bad mode",
        "The file /{file} is of another kind than at the snapshot, or runs with other rights.",
        "Put it back as it was.",
    ),
    (
        r"Can't open file /?(?P<file>.+?) on restore: (?P<reason>.+)",
        "The file /{file}, which the kernel has open, cannot be opened: {reason}.",
        "Put it back as it was, with the rights with which the kernel opened it.",
    ),
    (
        r"Can't open cwd|Can't chdir|files\.c.*cwd",
        "The working directory of a process of the kernel is gone.",
        "Create it again.",
    ),
    (
        r"sk-unix\.c.*Address already in use",
        "Something else is in the place of a unix socket on which the kernel listens.",
        "Remove or rename it, then try again.",
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


#: Messages that follow another one, which has the cause.
_FOLLOWING = re.compile(r"FAILED|failed with -?\d+$")
_REPORT = "Close it, or end the process that has it, then try again. If you do not know what it is, please report the details."


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
                return Diagnosis(_filled(cause, found), hint, details)
    for line in lines:
        found = _ERROR.search(line)
        subject = log_subjects.SUBJECTS.get(found["part"]) if found else None
        if found and subject and not _FOLLOWING.search(found["text"]):
            return Diagnosis(
                f"CRIU failed at {subject} of the kernel: {found['text']}.", _REPORT, details
            )
    return Diagnosis(
        fallback, "The details hold the end of CRIU's log; please report them.", details
    )


def _filled(cause: str, found: re.Match[str]) -> str:
    names = {key.rstrip("2"): value for key, value in found.groupdict().items() if value}
    return cause.format(
        file=log_subjects.named(names.get("file", "")),
        family=log_subjects.family(names.get("family", "")),
        protocol=log_subjects.protocol(names.get("protocol", "")),
        reason=names.get("reason", ""),
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
