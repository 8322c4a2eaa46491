"""The kernelspecs of templates, by which every client's launcher shows them."""

from __future__ import annotations

import base64
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_core.paths import jupyter_data_dir

from ..client.templates import TemplateFolder
from ..errors import ConfigurationError, StoreUnavailable
from ..linux.disk_reserve import write_atomically
from ..wire.template_records import Template

PROVISIONER = "gpuckpt-provisioner"
#: The kernelspec's metadata with the name of the template.
_KEY = "gpuckpt_template"
_ICONS = ("logo-svg.svg", "logo-64x64.png", "logo-32x32.png")
_KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
#: A kernel's icon with a badge: an arrow from a full to an empty circle would be too small, so it is the sign for "at once".
_BADGED = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64" width="64" height="64">
  <image href="data:{kind};base64,{icon}" width="64" height="64"/>
  <circle cx="49" cy="49" r="14" fill="#2e7d32" stroke="#ffffff" stroke-width="2"/>
  <path d="M51 38 L42 51 L48 51 L46 60 L56 46 L50 46 Z" fill="#ffffff"/>
</svg>
"""


def base_of(name: str) -> KernelSpec:
    """Return the kernelspec in which a recipe runs. Raises ConfigurationError if there is none, or none of IPython."""
    try:
        spec: KernelSpec = KernelSpecManager().get_kernel_spec(name)
    except NoSuchKernel:
        raise ConfigurationError(
            f"There is no kernel {name}.", hint="`jupyter kernelspec list` lists them."
        ) from None
    if not any("ipykernel" in word for word in spec.argv):
        raise ConfigurationError(
            f"The kernel {name} is not started by ipykernel.",
            hint="Templates are for kernels of IPython.",
        )
    if spec.metadata.get("kernel_provisioner", {}).get("provisioner_name", PROVISIONER) != (
        PROVISIONER
    ):
        raise ConfigurationError(f"Kernels of {name} have another provisioner.")
    if _KEY in spec.metadata:
        raise ConfigurationError(f"The kernel {name} is that of a template itself.")
    return spec


def require_free(name: str) -> None:
    """Raise ConfigurationError if a kernelspec of this name exists that is not the template's."""
    found = KernelSpecManager().find_kernel_specs().get(name)
    if found is not None and _template_of(Path(found)) != name:
        raise ConfigurationError(
            f"There is a kernel {name} already.", hint="Choose another name for the template."
        )


def default_title(base: KernelSpec, name: str) -> str:
    """Return the name of a template's kernels for users."""
    title = base.display_name.removesuffix("(ipykernel)").strip()
    return f"{title} ({name.replace('-', ' ').replace('_', ' ')})"


def write(template: Template, folder: TemplateFolder) -> Path:
    """Write the kernelspec of a template, and return its folder. Raises ConfigurationError, StoreUnavailable."""
    base = base_of(template.kernel)
    target = _folder(template.name)
    code = f"exec(open({str(folder.start)!r}).read(), {{'__name__': 'gpuckpt_recipe', '__file__': {str(folder.start)!r}}})"
    spec: dict[str, Any] = {
        **base.to_dict(),
        "argv": [*base.argv, f"--IPKernelApp.code_to_run={code}"],
        "display_name": template.display_name,
        "metadata": {
            **base.metadata,
            "kernel_provisioner": {
                "provisioner_name": PROVISIONER,
                "config": {
                    **base.metadata.get("kernel_provisioner", {}).get("config", {}),
                    "template": template.name,
                },
            },
            _KEY: template.name,
        },
    }
    try:
        target.mkdir(parents=True, exist_ok=True)
        _write_icons(Path(base.resource_dir), target)
        write_atomically(target / "kernel.json", json.dumps(spec, indent=1).encode())
    except OSError as error:
        raise StoreUnavailable(
            f"The kernelspec {target} cannot be written: {error.strerror}."
        ) from error
    return target


def remove(name: str) -> None:
    """Remove the kernelspec of a template, if it has one."""
    target = _folder(name)
    if _template_of(target) == name:
        with suppress(OSError):
            (target / "kernel.json").unlink()
        shutil.rmtree(target, ignore_errors=True)


def _write_icons(source: Path, target: Path) -> None:
    """Write an icon with a badge; programs that show no SVG get the icon without one."""
    found = [source / name for name in _ICONS if (source / name).is_file()]
    for path in found:
        shutil.copyfile(path, target / path.name)
    if found:
        icon = base64.b64encode(found[0].read_bytes()).decode()
        badged = _BADGED.format(kind=_KINDS[found[0].suffix], icon=icon)
        (target / _ICONS[0]).write_text(badged)


def _folder(name: str) -> Path:
    return Path(jupyter_data_dir(), "kernels", name)


def _template_of(folder: Path) -> str:
    """Return the name of the template to which a kernelspec belongs; empty if to none."""
    try:
        return str(json.loads((folder / "kernel.json").read_text())["metadata"][_KEY])
    except (OSError, ValueError, LookupError, TypeError):
        return ""
