"""The command `jupyter gpuckpt kubernetes`: files for clusters with which kernels can be saved in pods."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import resources

from ..errors import ConfigurationError
from ..wire import pods
from . import printing

SUMMARY = "print files for Kubernetes with which kernels can be saved in pods"
DESCRIPTION = (
    "hub-values: values for the chart zero-to-jupyterhub. node-filter: objects that write the seccomp filter to every node. pod: a pod with"
    " JupyterLab, without a hub."
)
FILES = ("hub-values", "node-filter", "pod")
#: The files to which each argument applies.
_USES = {"claim": ("pod",), "gpus": ("hub-values", "pod")}


def add_arguments(to: argparse.ArgumentParser, seconds: Callable[[str], float]) -> None:
    """Add the arguments of the command. `seconds` converts a text to seconds."""
    to.add_argument("file", choices=FILES, help="which file")
    to.add_argument(
        "--image",
        default="",
        help=f"the image of users' servers (default: {pods.IMAGE}, which deploy/build-image builds); node-filter: one with sh, cp and mv"
        f" (default: {pods.NODE_IMAGE})",
    )
    to.add_argument(
        "--privileges",
        choices=pods.PRIVILEGES,
        default=pods.PRIVILEGES[0],
        help="what pods get, besides the filter: a user namespace of their own (Kubernetes 1.33 and newer), or root with capabilities,"
        " which gives a pod's user power over the node (default: %(default)s)",
    )
    to.add_argument(
        "--suspend-timeout",
        metavar="TIME",
        type=seconds,
        default=pods.SUSPEND_SECONDS,
        help="the time for suspending all kernels of a server: 90s, 2m (default: %(default)g s)",
    )
    to.add_argument("--gpus", metavar="N", type=_count, default=0, help="GPUs for each pod")
    to.add_argument(
        "--claim",
        metavar="NAME",
        default="",
        help="pod: the volume claim for the home directory, where snapshots are; without one, use a remote",
    )


def run(args: argparse.Namespace) -> int:
    """Print the file: YAML, or with --json a list of its documents. Raises ConfigurationError for arguments that it does not use."""
    for name in ("claim", "gpus"):
        if getattr(args, name) and args.file not in _USES[name]:
            raise ConfigurationError(
                f"--{name} is not for {args.file}.", hint=f"It is for: {', '.join(_USES[name])}."
            )
    documents = _documents(args)
    if args.json:
        printing.say_json(documents)
        return 0
    import yaml  # noqa: PLC0415 - too slow for --help

    printing.say(yaml.safe_dump_all(documents, sort_keys=False).rstrip())
    return 0


def _documents(args: argparse.Namespace) -> list[dict[str, object]]:
    if args.file == "node-filter":
        profile = resources.files("jupyter_gpuckpt").joinpath("profiles", "seccomp.json")
        return pods.node_filter(profile.read_text(), args.image or pods.NODE_IMAGE)
    if args.file == "hub-values":
        values = pods.hub_values(
            image=args.image or pods.IMAGE,
            privileges=args.privileges,
            suspend_seconds=args.suspend_timeout,
            gpus=args.gpus,
        )
        return [values]
    pod = pods.pod(
        image=args.image or pods.IMAGE,
        privileges=args.privileges,
        suspend_seconds=args.suspend_timeout,
        gpus=args.gpus,
        claim=args.claim,
    )
    return [pod]


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a number of GPUs: {text}")
    return int(text)
