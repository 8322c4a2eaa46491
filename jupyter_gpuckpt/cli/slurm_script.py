"""The command `jupyter gpuckpt slurm-script`, which prints a batch script of Slurm whose job continues after a preemption."""

from __future__ import annotations

import argparse
from importlib import resources

from . import printing
from .parser import Parser

SUMMARY = (
    "print a batch script of Slurm whose job continues after preemption and after its time limit"
)
DESCRIPTION = (
    "The script runs the command that `sbatch` gets after its name: `sbatch slurm-job.sh jupyter gpuckpt execute NOTEBOOK -o FILE`. If"
    " Slurm ends the job for another one or at its time limit, kernels are suspended, and the job is requeued and continues. After"
    " scancel it is not requeued."
)
#: The example in the script, and the exit statuses that mean "stopped, with suspended kernels", by whether the command is a server.
_OF_EXECUTE = (
    "sbatch --time=4:00:00 slurm-job.sh jupyter gpuckpt execute training.ipynb -o done.ipynb --lose-at-most 10m",
    "130 143",
)
_OF_SERVER = ("sbatch --time=4:00:00 slurm-job.sh jupyter lab --no-browser --ip=0.0.0.0", "0")


def add_arguments(to: Parser) -> None:
    """Add the command's arguments."""
    to.flag(
        "--server",
        "for a Jupyter server, whose exit status after a stop is 0; default: for `execute` and papermill",
    )


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    text = script(for_server=args.server)
    printing.result({"script": text}, text.rstrip(), as_json=args.json)
    return 0


def script(*, for_server: bool = False) -> str:
    """Return the batch script for a command that executes a notebook, or for a server."""
    example, stopped = _OF_SERVER if for_server else _OF_EXECUTE
    profile = resources.files("jupyter_gpuckpt").joinpath("profiles", "slurm-job.sh")
    return profile.read_text().replace("@EXAMPLE@", example).replace("@STOPPED@", stopped)
