"""The error messages of CRIU: those that a user can meet in a save have a cause in words; of the others it is known why nobody meets them.

criu-messages.tsv lists all messages in CRIU's sources; `tools/criu-messages` makes it anew for another version.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jupyter_gpuckpt.engine.criu import log_causes, log_subjects

MESSAGES = [
    tuple(line.split("\t"))
    for line in Path(__file__).with_name("criu-messages.tsv").read_text().splitlines()
]

#: Files of CRIU's sources whose messages no save shows as its cause, and why.
UNREACHED = {
    "they work in a restore only": (
        *(
            "criu/cr-restore.c",
            "criu/pie/restorer.c",
            "criu/arch/x86/restorer.c",
            "criu/rst-malloc.c",
        ),
        "criu/arch/x86/sigaction_compat.c",
    ),
    "namespaces are not saved: CRIU runs inside the kernel's": (
        *(
            "criu/mount.c",
            "criu/mount-v2.c",
            "criu/autofs.c",
            "criu/filesystems.c",
            "criu/ipc_ns.c",
        ),
        *("criu/namespaces.c", "criu/net.c", "criu/netfilter.c", "criu/sysctl.c", "criu/uts_ns.c"),
    ),
    "control groups are not saved (--manage-cgroups=ignore)": (
        *("criu/cgroup.c", "criu/cgroup-props.c"),
    ),
    "the feature is not asked for": (
        *("criu/cr-check.c", "criu/cr-dedup.c", "criu/cr-service.c", "criu/fault-injection.c"),
        *("criu/img-streamer.c", "criu/plugin.c", "criu/tls.c", "criu/uffd.c", "criu/lsm.c"),
        *("criu/apparmor.c", "criu/clone-noasan.c", "criu/pidfd-store.c"),
    ),
    "they are about CRIU's own start, which the doctor's trial has made before": (
        *(
            "criu/kerndat.c",
            "criu/arch/x86/kerndat.c",
            "criu/config.c",
            "criu/crtools.c",
            "criu/log.c",
        ),
        *("criu/action-scripts.c", "criu/servicefd.c", "criu/fdstore.c", "criu/sysfs_parse.c"),
    ),
    "they are about images, which are on the scratch tmpfs: errors there name their errno": (
        *("criu/image.c", "criu/protobuf.c"),
    ),
    "they are about CRIU's own code as a file, at its build": (
        *("compel/src/lib/handle-elf.c", "compel/src/lib/handle-elf-host.c"),
        *("compel/arch/x86/src/lib/handle-elf.c", "compel/arch/x86/src/lib/handle-elf-host.c"),
    ),
}
REASONS = {name: reason for reason, names in UNREACHED.items() for name in names}
REACHED = [(name, text) for name, text in MESSAGES if name not in REASONS]

#: What rows of the table match besides messages of CRIU: errors of Linux in their words, and of other programs.
NOT_CRIUS = re.compile(
    r"No space left|Cannot allocate memory|stopped by signal 5|Transport endpoint|Resource temporarily|nvidia|secretmem|aio"
)


def diagnosed(name: str, text: str) -> log_causes.Diagnosis:
    line = f"(00.123456) 4321: Error ({name}:77): {text}"
    return log_causes.diagnose(Path("/nowhere/dump.log"), errors=line, fallback="FALLBACK")


def test_every_file_of_criu_is_named_or_nobody_meets_its_messages() -> None:
    names = {name for name, _ in MESSAGES}
    assert len(names) > 90
    reached = {name for name in names if Path(name).stem in log_subjects.SUBJECTS}
    assert names - reached - REASONS.keys() == set()
    assert REASONS.keys() - names == set()


def test_every_message_that_a_save_can_meet_has_a_cause() -> None:
    following = [text for _, text in REACHED if log_causes._FOLLOWING.search(text)]
    assert len(following) < 30
    without = [
        (name, text)
        for name, text in REACHED
        if text not in following and diagnosed(name, text).cause == "FALLBACK"
    ]
    assert len(REACHED) > 1000
    assert without == []


def test_every_row_of_the_table_is_about_a_message_that_there_is() -> None:
    lines = [
        f"Error ({name}:77): {text}{error}"
        for name, text in MESSAGES
        for error in (": Operation not permitted", ": File exists", ": Address already in use")
    ]
    unknown = [
        pattern
        for pattern, _, _ in log_causes._TABLE
        if not NOT_CRIUS.search(pattern) and not any(re.search(pattern, line) for line in lines)
    ]
    assert unknown == []


def test_a_message_that_follows_another_one_is_never_the_cause() -> None:
    errors = "\n".join(
        f"Error ({line}"
        for line in (
            "criu/eventpoll.c:1): epoll: Something new",
            "criu/cr-dump.c:1545): Dump files (pid: 7) failed with -1",
            "criu/cr-dump.c:1975): Dumping FAILED.",
        )
    )
    found = log_causes.diagnose(Path("/nowhere"), errors=errors, fallback="FALLBACK")
    assert found.cause == "CRIU failed at an epoll descriptor of the kernel: Something new."
    assert "end the process" in found.hint
    last = errors.splitlines()[-1]
    assert (
        log_causes.diagnose(Path("/nowhere"), errors=last, fallback="FALLBACK").cause == "FALLBACK"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Can't create inotify: Too many open files",
        "Can't add watch for 0x7f with 0x7f: No space left on device",
    ],
)
def test_limits_of_watches_are_no_limit_of_files_or_of_the_disk(text: str) -> None:
    found = diagnosed("criu/fsnotify.c", text)
    assert "inotify" in found.cause
    assert "max_user_watches" in found.hint


def test_a_limit_of_namespaces_is_no_lack_of_room() -> None:
    found = diagnosed("criu/namespaces.c", "Can't unshare user namespace: No space left on device")
    assert "limit of namespaces" in found.cause
    assert "max_user_namespaces" in found.hint


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("chr 1:3", "/dev/null"),
        ("chr 10:99999", "a device (char 10:99999)"),
        ("anon anon_inode:[perf_event]", "a performance counter (perf)"),
        ("anon anon_inode:[something]", "a descriptor of Linux (something)"),
    ],
)
def test_devices_and_descriptors_have_names(what: str, words: str) -> None:
    found = diagnosed("criu/files-ext.c", f"Can't dump file 3 of that type [20600] ({what})")
    assert found.cause == f"The kernel has {words} open, which CRIU cannot save."
