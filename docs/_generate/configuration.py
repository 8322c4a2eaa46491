"""The settings: the traits of all classes that `c.NAME` configures, and the environment variables."""

from __future__ import annotations

import os
from pathlib import Path

from gpuckpt_provisioner import GpuCkptProvisioner
from traitlets import HasTraits, TraitType
from traitlets.utils.sentinel import Sentinel

from jupyter_gpuckpt.client.daemon_traits import GpuCkptDaemon
from jupyter_gpuckpt.hub import GpuCkptSpawnerMixin
from jupyter_gpuckpt.server.traits import ServerTraits

from .markdown import code, escaped, sentence, table

#: The name in a configuration file, the class with the traits, the files in which it is set, and its subject.
CLASSES: tuple[tuple[str, type[HasTraits], str, str], ...] = (
    (
        "GpuCkptServer",
        ServerTraits,
        "`jupyter_server_config.py` or `jupyter_gpuckpt_config.py`",
        "What a Jupyter server does with its kernels by itself.",
    ),
    (
        "GpuCkptDaemon",
        GpuCkptDaemon,
        "`jupyter_server_config.py` or `jupyter_gpuckpt_config.py`",
        "Where snapshots lie, how many stay, and what a save may use.",
    ),
    (
        "GpuCkptProvisioner",
        GpuCkptProvisioner,
        "`jupyter_server_config.py`",
        "How kernels are started.",
    ),
    (
        "GpuCkptSpawnerMixin",
        GpuCkptSpawnerMixin,
        "`jupyterhub_config.py`",
        "What JupyterHub does before it stops a server. [JupyterHub](../jupyterhub.md) says how it is switched on.",
    ),
)
#: The environment variables with their descriptions; `tests/unit/test_docs.py` compares them with those that the code reads.
VARIABLES = {
    "JUPYTER_GPUCKPT_CLEAN_START": "1: the default of `GpuCkptServer.clean_start` is to be on.",
    "JUPYTER_GPUCKPT_CRIU": "Path of the criu program. Without it, criu is looked for on PATH and in the package jupyter-gpuckpt-criu.",
    "JUPYTER_GPUCKPT_DATA_DIR": "Directory of the daemon's state and log and, unless set otherwise, of the snapshots.",
    "JUPYTER_GPUCKPT_IDLE_EXIT": "Seconds after which a daemon that nobody needs ends.",
    "JUPYTER_GPUCKPT_RUNTIME_DIR": (
        "Directory of the daemon's socket, not in a home directory. Default: /run/user/UID/gpuckpt, else a directory in /tmp."
    ),
    "JUPYTER_GPUCKPT_GPU_COPY": "The default of `GpuCkptProvisioner.gpu_copy`: own or driver.",
    "JUPYTER_GPUCKPT_RECLAIM_NOTICES": "0: notices that this machine goes are not looked for.",
    "JUPYTER_GPUCKPT_TRACK_WRITES": "0: every save reads all memory, also what was not written since the last one.",
    "JUPYTER_GPUCKPT_RECLAIM_PROVIDER": (
        "The provider of this machine: aws, gcp, azure or none. Without it, the machine's firmware says it."
    ),
    "JUPYTER_GPUCKPT_RECLAIM_ENDPOINT": (
        "URL of the provider's metadata service, for a proxy or a test. Default: http://169.254.169.254."
    ),
    "JUPYTER_GPUCKPT_RETENTION": (
        "The defaults of `GpuCkptDaemon.keep_last`, `keep_suspends`, `keep_within` and `max_bytes`, as JSON. JupyterHub sets it for"
        " servers (`GpuCkptSpawnerMixin.retention`)."
    ),
    "JUPYTER_GPUCKPT_STORE_DIR": "Directory of the snapshots.",
}


def page() -> str:
    """Return a section for each class, with all of its traits."""
    return "\n\n".join(
        f"## c.{name}\n\n{about} Set in {file}.\n\n{_settings(kind)}"
        for name, kind, file, about in CLASSES
    )


def environment() -> str:
    """Return the table of the environment variables."""
    return table(["Variable", "Meaning"], [(code(name), text) for name, text in VARIABLES.items()])


def traits_of(kind: type[HasTraits]) -> dict[str, TraitType]:
    """Return the configurable traits of a class itself, in the order of the source."""
    return {
        name: trait
        for name, trait in vars(kind).items()
        if isinstance(trait, TraitType) and trait.metadata.get("config")
    }


def _settings(kind: type[HasTraits]) -> str:
    parts = []
    for trait_name, trait in traits_of(kind).items():
        facts = [type(trait).__name__.lower()]
        if default := _default(trait):
            facts.append(f"default {code(default)}")
        if (least := getattr(trait, "min", None)) is not None:
            facts.append(f"at least {code(f'{least:g}')}")
        parts.append(
            f"### `{trait_name}`\n\n*{'; '.join(facts)}*\n\n{escaped(sentence(trait.help))}"
        )
    return "\n\n".join(parts)


def _default(trait: TraitType) -> str:
    """Return a default as Python prints it; empty if the help describes how it is computed."""
    value = trait.default()
    if value is None or isinstance(value, Sentinel) or value == "":
        return ""
    home = str(Path.home())
    return repr(value).replace(home, "~") if home != os.sep else repr(value)
