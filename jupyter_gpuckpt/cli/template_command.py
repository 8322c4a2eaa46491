"""The command `jupyter gpuckpt template`, which makes and lists templates."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import ConfigurationError
from ..wire import calls, daemon_settings
from . import printing
from .daemon_calls import daemon
from .naming import one_snapshot
from .parser import Parser

if TYPE_CHECKING:
    from ..client.templates import TemplateFolder
    from ..wire.template_records import Template

SUMMARY = "make kernels that begin with libraries loaded and data ready"
DESCRIPTION = (
    "A template is a recipe, a notebook or a script, whose kernel was saved after it. A new kernel of the template is a copy of that"
    " kernel. It appears beside the other kernels in launchers, and is started by its name everywhere."
)


def add_arguments(to: Parser) -> None:
    """Add the commands of `template`."""
    verbs = to.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")

    def verb(name: str, summary: str, *, named: bool = True) -> Parser:
        added = verbs.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
        )
        added.flag("--json", "print one JSON document")
        if named:
            added.add_argument("name", metavar="NAME", help="the template's name")
        return added

    create = verb("create", "run a recipe in a new kernel, and make a template of it")
    sources = create.add_mutually_exclusive_group(required=True)
    sources.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        type=Path,
        help="the recipe: a notebook, of which cells tagged skip-execution are left out, or a script",
    )
    sources.add_argument(
        "--from-snapshot",
        metavar="SNAPSHOT",
        help="the cells that had run in the notebook of a snapshot are the recipe; they run again",
    )
    create.add_argument(
        "--kernel", metavar="NAME", default="python3", help="the kernel that runs it"
    )
    create.add_argument(
        "--title",
        metavar="TITLE",
        default="",
        help="the name in launchers; default: the kernel's, with the template's",
    )
    create.add_argument(
        "--env",
        dest="variables",
        metavar="VARIABLE",
        action="append",
        default=[],
        help="a variable of this environment that the recipe needs; its value is then in every copy",
    )
    verb("list", "list the templates", named=False)
    verb("show", "show a template, and whether its kernels can be copied now")
    rebuild = verb("rebuild", "run a template's recipe again")
    rebuild.flag("--if-needed", "only if its packages or its recipe have changed")
    verb("rm", "remove a template; kernels that were started from it run on")


def run(args: Namespace) -> int:
    """Run a command."""
    _VERBS[args.verb](args)
    return 0


def _create(args: Namespace) -> None:
    from ..headless import template_builds  # noqa: PLC0415 - slow to import

    began, settings = time.monotonic(), daemon_settings.from_environment()
    named = {"title": args.title, "variables": args.variables}
    with printing.ProgressBar(f"Building {args.name}") as bar:
        if args.from_snapshot:
            made = template_builds.create_from_snapshot(
                settings,
                args.name,
                _snapshot_id(args.from_snapshot),
                progress=bar.show_count,
                **named,
            )
        else:
            made = template_builds.create(
                settings,
                args.name,
                args.source,
                kernel=args.kernel,
                progress=bar.show_count,
                **named,
            )
    took = printing.duration(time.monotonic() - began)
    text = f"Made the template {made.name} in {took}: {made.display_name}."
    printing.result(_described(made, ""), text, as_json=args.json)


def _snapshot_id(named: str) -> str:
    with daemon(waits=True) as client:
        return one_snapshot(named, client.send(calls.snapshots()))


def _rebuild(args: Namespace) -> None:
    from ..headless import template_builds  # noqa: PLC0415 - slow to import

    with printing.ProgressBar(f"Building {args.name}") as bar:
        made = template_builds.rebuild(
            daemon_settings.from_environment(),
            args.name,
            if_needed=args.if_needed,
            progress=bar.show_count,
        )
    printing.result(
        _described(made, ""), f"The template {made.name} is up to date.", as_json=args.json
    )


def _remove(args: Namespace) -> None:
    from ..headless import template_builds  # noqa: PLC0415 - slow to import

    template_builds.remove(daemon_settings.from_environment(), args.name)
    printing.result({"removed": args.name}, f"Removed the template {args.name}.", as_json=args.json)


def _list(args: Namespace) -> None:
    from ..client import templates  # noqa: PLC0415 - with --help nothing of it is needed

    folders = templates.folders(daemon_settings.from_environment().data)
    found = []
    for folder in folders:
        try:
            one = folder.get()
            found.append((one, _state(one, folder)))
        except ConfigurationError as error:  # the others are listed all the same
            printing.warn(f"{error} {error.hint}")
    if args.json:
        printing.say_json([_described(one, state) for one, state in found])
        return
    if not found:
        printing.note("There are no templates.")
        return
    rows = [
        (
            one.name,
            one.display_name,
            state,
            printing.size(one.cache.sizes.raw_bytes) if one.cache else "",
        )
        for one, state in found
    ]
    printing.say(printing.table(("NAME", "TITLE", "STATE", "MEMORY"), rows))


def _show(args: Namespace) -> None:
    from ..client.templates import TemplateFolder  # noqa: PLC0415 - with --help nothing is needed

    folder = TemplateFolder(daemon_settings.from_environment().data, args.name)
    one = folder.get()
    state = _state(one, folder)
    lines = [
        f"Title     {one.display_name}",
        f"Kernel    {one.kernel}",
        f"Recipe    {one.source or folder.recipe}",
        f"State     {state}",
    ]
    if one.variables:
        lines.append(f"Variables {', '.join(one.variables)}")
    if one.cache:
        ran = printing.duration(one.cache.seconds)
        lines += [
            f"Snapshot  {one.cache.snapshot_id}",
            f"Memory    {printing.size(one.cache.sizes.raw_bytes)}",
            f"Recipe ran for {ran}",
        ]
    if one.error:
        lines.append(f"The last attempt to build it failed: {one.error.message}")
    printing.result(_described(one, state), "\n".join(lines), as_json=args.json)


def _state(template: Template, folder: TemplateFolder) -> str:
    """Return whether kernels are copies now, else why not, and what is done about it."""
    from ..client import templates  # noqa: PLC0415 - as above

    why = templates.staleness(template, folder.cells(template))
    if folder.is_being_built:
        return "is being built"
    if not why:
        return "ready"
    failed = " and could not be built again" if template.error else ""
    return f"runs its recipe: {why}{failed}"


def _described(template: Template, state: str) -> dict[str, object]:
    described: dict[str, object] = msgspec.to_builtins(template)
    if template.cache is not None:
        described["cache"] = {
            name: value
            for name, value in msgspec.to_builtins(template.cache).items()
            if name != "sources"
        }
    return {**described, "state": state} if state else described


_VERBS = {
    "create": _create,
    "list": _list,
    "show": _show,
    "rebuild": _rebuild,
    "rm": _remove,
}
