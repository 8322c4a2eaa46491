"""Kernelspecs whose kernels outlive their editor: made for a kernelspec, and recognized."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_core.paths import jupyter_data_dir

from ..errors import ConfigurationError

#: The program in such a kernelspec, and the key of the kernelspec that it is for.
MODULE, KEY = "jupyter_gpuckpt.relay.stand_in", "jupyter_gpuckpt"


def install(name: str) -> tuple[Path, str]:
    """Write a kernelspec for the one of this name into the user's folder; return its folder and the name that editors show."""
    manager = KernelSpecManager()
    try:
        found = manager.get_kernel_spec(name)
    except NoSuchKernel:
        known = ", ".join(sorted(manager.find_kernel_specs())) or "none"
        raise ConfigurationError(
            f"There is no kernel {name}.", hint=f"Name one of the installed kernels: {known}."
        ) from None
    if real(found) is not None:
        raise ConfigurationError(f"The kernel {name} is one that keeps its state already.")
    if "kernel_provisioner" in found.metadata:
        raise ConfigurationError(
            f"Kernels of {name} are started by a provisioner of their own, so an editor cannot start them.",
            hint="Name another kernel.",
        )
    environment = "" if sys.prefix == sys.base_prefix else Path(sys.prefix).name
    if environment in {".venv", "venv", "env"}:
        environment = Path(sys.prefix).parent.name
    folder = Path(
        jupyter_data_dir(),
        "kernels",
        re.sub(
            r"[^a-z0-9._-]", "-", "-".join(filter(None, ["gpuckpt", environment, name])).lower()
        ),
    )
    shown = re.sub(r"\s*\(ipykernel\)$", "", found.display_name)
    shown = f"{shown}{f', {environment}' if environment else ''} (keeps its state)"
    argv = list(found.argv)
    program = (
        sys.executable if re.fullmatch(r"python(3(\.\d+)?)?", argv[0]) else shutil.which(argv[0])
    )
    argv[0] = program or argv[0]
    kernel = {**found.to_dict(), "argv": argv, "name": name}
    described = {
        "argv": [sys.executable, "-m", MODULE, "--spec", str(folder), "-f", "{connection_file}"],
        "display_name": shown,
        "language": found.language,
        "interrupt_mode": "message",
        "metadata": {
            **{n: v for n, v in found.metadata.items() if n == "debugger"},
            KEY: {"kernelspec": kernel},
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.json").write_text(json.dumps(described, indent=1) + "\n")
    return folder, shown


def real(spec: KernelSpec | None) -> KernelSpec | None:
    """Return the kernelspec of the kernel that such a kernelspec is for; None for others."""
    if spec is None or MODULE not in spec.argv:
        return None
    described: dict[str, Any] = dict(spec.metadata[KEY]["kernelspec"])
    described.pop("name", None)
    return KernelSpec(resource_dir=spec.resource_dir, **described)
