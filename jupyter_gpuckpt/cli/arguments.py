"""The argument parser of `jupyter gpuckpt`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ..wire.protocol import package_version
from ..wire.statuses import SOME_NOT_SAVED
from . import (
    executing,
    hub_report,
    mcp_command,
    notice,
    prune,
    slurm_script,
    template_command,
)
from .parser import KERNEL_HELP, SNAPSHOT_HELP, Parser, title
from .remote import move_command, remote_command

PROGRAM = "jupyter gpuckpt"

DESCRIPTION = """\
Save, suspend and resume running Jupyter kernels, with their processes and GPU memory.
"""

EPILOG = """\
A kernel is named by its notebook (the path, the file's name, or a part that
is unique), by its id or by the beginning of it. A snapshot is named by its id
or the beginning of it, by its title or a part of it, or by `latest`, the
newest of all; `KERNEL:latest` is the newest of that kernel.

Exit status: 0 done, 1 an unexpected error or an error in an executed
notebook, 2 wrong usage, 3 not possible on this machine, 4 this kernel cannot
be saved, 5 not found, 6 not possible now, 7 daemon or store cannot be
reached, 8 the save or resume failed, 9 no space left, 10 the store is
damaged, 11 some of several kernels were not saved, 130 interrupted.
"""


def parser(program: str = PROGRAM) -> Parser:
    """Return the parser; parsed arguments have `command`, `json` and the command's own."""
    top = Parser(
        prog=program,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"jupyter-gpuckpt {package_version()}")
    top.set_defaults(command=None, json=False)
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, summary: str, description: str = "") -> Parser:
        added = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}. {description}".strip(),
            allow_abbrev=False,
        )
        added.set_defaults(command=name)
        added.flag("--json", 'print one JSON document; errors become {"error": {...}}')
        return added

    doctor = command(
        "doctor",
        "check whether kernels can be saved on this machine, and how to fix it if not",
        "It suspends and resumes a small program as a trial. The exit status is 3 if kernels cannot be saved.",
    )
    files = doctor.add_mutually_exclusive_group()
    files.add_argument(
        "--seccomp",
        action="store_true",
        help="print the seccomp profile with which kernels can be saved in containers",
    )
    files.add_argument(
        "--apparmor",
        action="store_true",
        help="print the AppArmor profile that lets ordinary users save kernels",
    )
    _about_kernels(command)
    _about_snapshots(command)
    executing.add_arguments(command("execute", executing.SUMMARY, executing.DESCRIPTION))
    hub_report.add_arguments(command("hub-report", hub_report.SUMMARY, hub_report.DESCRIPTION))
    mcp_command.add_arguments(command("mcp", mcp_command.SUMMARY, mcp_command.DESCRIPTION))
    notice.add_arguments(command("notice", notice.SUMMARY, notice.DESCRIPTION))
    prune.add_arguments(command("prune", prune.SUMMARY, prune.DESCRIPTION))
    remote_command.add_arguments(
        command("remote", remote_command.SUMMARY, remote_command.DESCRIPTION)
    )
    slurm_script.add_arguments(
        command("slurm-script", slurm_script.SUMMARY, slurm_script.DESCRIPTION)
    )
    template_command.add_arguments(
        command("template", template_command.SUMMARY, template_command.DESCRIPTION)
    )
    return top


def _about_kernels(command: Callable[..., Parser]) -> None:
    command("ps", "list the kernels", "PID is what `ps` and `nvidia-smi` outside a kernel show.")
    save = command("save", "save a kernel, which runs on")
    save.kernel()
    save.title()
    suspend = command(
        "suspend",
        "save a kernel, then stop its processes and free its memory",
        "With --all, every running kernel of this user is suspended: for hooks that run before a machine or container is stopped. The exit"
        f" status is then {SOME_NOT_SAVED} if some could not be saved.",
    )
    suspend.add_argument("kernel", metavar="KERNEL", nargs="?", default="", help=KERNEL_HELP)
    suspend.title()
    suspend.flag("--all", "all kernels that run")
    suspend.seconds("--within", "with --all: kernels that are not saved by then (25s, 2m) run on")
    command(
        "park",
        "move a kernel's GPU memory to RAM and free the GPU",
        "Its process runs on; its next cell in a notebook, or `resume`, moves the memory back.",
    ).kernel()
    resume = command(
        "resume",
        "bring a kernel back: a suspended or parked one, or one that has ended",
        "It comes back from its latest snapshot, or from the snapshot that is named, which may have been imported.",
    )
    _kernel_or_snapshot(resume)
    resume.flag(
        "--take-over",
        "resume it even if another machine runs its session; later changes on that machine become a branch",
    )
    _force(resume)
    branch = command(
        "branch",
        "start a second kernel beside a kernel, from its state now or from a snapshot",
        "A kernel that runs is saved first. The next Jupyter server that shows the notebook lists the branch; until then clients can"
        " connect to it.",
    )
    _kernel_or_snapshot(branch)
    _force(branch)
    end = command(
        "end",
        "end a kernel for good, with everything that it started",
        "What it did since its last snapshot is lost; its snapshots stay. It is ended only after a question on a terminal, or with --yes.",
    )
    end.kernel()
    end.flag("-y", "--yes", "do not ask")
    move_command.add_arguments(command("move", move_command.SUMMARY, move_command.DESCRIPTION))


def _about_snapshots(command: Callable[..., Parser]) -> None:
    listing = command("list", "list the snapshots, newest first")
    listing.add_argument(
        "--kernel",
        metavar="KERNEL",
        default="",
        help="list only the snapshots of this kernel: its notebook or id, or a part",
    )
    listing.flag("--deleted", "list instead the deleted snapshots that `undelete` can bring back")
    command("show", "show a snapshot", "With --json, all of it that is not secret.").snapshot()
    diff = command(
        "diff",
        "compare the variables of two snapshots, or of a snapshot and a kernel now",
        "A kernel means its variables now, or those of its snapshot while it is suspended. Beside a kernel, latest is the latest snapshot"
        " of that kernel. Values are compared by digests; those of some types cannot be.",
    )
    diff.add_argument("first", metavar="A", help=f"a snapshot ({SNAPSHOT_HELP}) or a kernel")
    diff.add_argument(
        "second", metavar="B", nargs="?", default="", help="the same; default: the kernel of A now"
    )
    remove = command(
        "rm",
        "delete snapshots",
        "For a minute, by default, `undelete` brings them back. The latest snapshot of a suspended kernel is the kernel itself:"
        " it is not deleted. A snapshot that is pinned or has a title is deleted only after a question on a terminal, or with --yes.",
    )
    remove.snapshot("+")
    remove.flag("-y", "--yes", "do not ask")
    command(
        "undelete",
        "bring deleted snapshots back, while that can be done",
        "By default that is possible for a minute, for the last periodic save of a kernel that a user shut down for a day. Without"
        " SNAPSHOT, all possible deletions are undone.",
    ).snapshot("*")
    note = command("note", "change the note or title of a snapshot")
    note.snapshot()
    note.add_argument("text", metavar="TEXT", nargs="?", help="the note; '' removes it")
    note.add_argument("--title", metavar="TITLE", type=title, help="title in lists; '' removes it")
    command("pin", "pin a snapshot, so that retention never removes it").snapshot()
    command("unpin", "unpin a snapshot, so that retention may remove it").snapshot()
    command(
        "verify",
        "read all of the snapshots and compare them with their digests",
        "Without SNAPSHOT, all are verified. The exit status is 10 if one is damaged.",
    ).snapshot("*")
    export = command(
        "export",
        "write a snapshot to a file, to be imported elsewhere",
        "The file is a tar archive with everything the kernel had in memory, unencrypted.",
    )
    export.snapshot()
    export.add_argument("file", metavar="FILE", help="the file to write; - is stdout")
    importing = command(
        "import",
        "import the snapshots of an exported file",
        "Everything is verified first. Import only archives that you trust: kernels resumed from them run with your rights.",
    )
    importing.add_argument("file", metavar="FILE", help="the archive; - is stdin")
    command(
        "stats",
        "show how much disk space snapshots use, and what deduplication and compression save",
    )


def _kernel_or_snapshot(to: Parser) -> None:
    to.add_argument(
        "kernel",
        metavar="KERNEL|SNAPSHOT",
        help=f"of a kernel {KERNEL_HELP}; of a snapshot {SNAPSHOT_HELP}",
    )


def _force(to: Parser) -> None:
    to.flag(
        "--force",
        "resume it although files changed so that using them may end it or damage a database",
    )
