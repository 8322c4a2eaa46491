"""Starts of kernels as copies of a template's kernel. All functions block."""

from __future__ import annotations

import asyncio
import platform
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from jupyter_client.asynchronous import AsyncKernelClient

from jupyter_gpuckpt.client import programs, recipes, templates
from jupyter_gpuckpt.client.agent_code import AGENT_REQUEST
from jupyter_gpuckpt.errors import (
    ConfigurationError,
    GpuCkptError,
    HostIncompatible,
    KernelError,
    ObjectCorrupt,
    SnapshotNotFound,
)
from jupyter_gpuckpt.wire import calls

from . import kernel_ports
from .agent_installation import answer

if TYPE_CHECKING:
    from jupyter_client.connect import KernelConnectionInfo

    from jupyter_gpuckpt.client import Client
    from jupyter_gpuckpt.client.templates import TemplateFolder
    from jupyter_gpuckpt.wire.daemon_settings import Settings
    from jupyter_gpuckpt.wire.manifest_records import LaunchSpec
    from jupyter_gpuckpt.wire.protocol import Kernel
    from jupyter_gpuckpt.wire.template_records import Template

#: How long a copy has to answer: Linux reads all of its memory for the first time then.
_ANSWER_SECONDS = 60.0
#: The modules whose global generators a copy seeds anew (`kernel_agent/global_generators.py`).
_GENERATORS = ["random", "numpy", "torch"]


class Started(NamedTuple):
    """A kernel that was started, and its connection info."""

    kernel: Kernel
    connection: dict[str, Any]


class _Stale(Exception):  # noqa: N818 - no error: the template is built again
    """The template's snapshot is not what its recipe would make now."""


def start(
    name: str,
    settings: Settings,
    client: Client,
    owner_id: str,
    spec: LaunchSpec,
    connection: dict[str, Any],
    connection_file: str,
    *,
    shared: str,
    may_be_ready: bool,
) -> Started | str:
    """Start the kernel of `spec` as a copy of a template's kernel; otherwise return why that is impossible now, as a part of a sentence.

    Nothing is left of a copy that failed. A template whose snapshot is not what its recipe would make is built again in the background.
    `shared`: an administrator's data directory that has the template, unless the user has one of that name; empty: none.
    `may_be_ready`: it may be a ready copy, which has ports of its own.
    """
    template, is_own = None, False
    try:
        folder = templates.found(settings.data, name, shared)
        is_own = not folder.store
        template = folder.get()
        with folder.in_use():
            return _start(
                folder,
                client,
                owner_id,
                spec,
                connection,
                connection_file,
                may_be_ready=may_be_ready,
            )
    except _Stale as stale:
        reason, builds = str(stale), True
    except (SnapshotNotFound, ObjectCorrupt) as error:
        reason, builds = error.message, True
    except HostIncompatible as error:
        reason, builds = error.message, _is_of_here(template, client)
    except (GpuCkptError, OSError) as error:
        reason, builds = str(error), False
    except Exception as error:  # whatever is wrong with a template, the kernel is started
        reason, builds = f"{type(error).__name__}: {error}", False
    if builds and is_own and template is not None and templates.may_build(template):
        with suppress(OSError):
            programs.begin_build(name, settings.data / "log" / "templates" / f"{name}.log")
    return reason


def _start(
    folder: TemplateFolder,
    client: Client,
    owner_id: str,
    spec: LaunchSpec,
    connection: dict[str, Any],
    connection_file: str,
    *,
    may_be_ready: bool,
) -> Started:
    template = folder.get()
    cells = folder.cells(template)
    cache = template.cache
    if (why := templates.staleness(template, cells)) or cache is None:
        raise _Stale(why)
    if connection["transport"] != "tcp" or "curve_publickey" in connection:
        raise ConfigurationError("its sockets are not TCP ports without encryption")
    former = client.send(calls.launch_spec(cache.snapshot_id, folder.store))
    before = former.jupyter["connection_info"]
    if before["ip"] != connection["ip"]:
        raise ConfigurationError("it listens at another address than the template's kernel")
    visible = spec.env.get("CUDA_VISIBLE_DEVICES", "")
    kernel = client.send(
        calls.copy(
            owner_id, cache.snapshot_id, spec, visible, folder.store, may_be_ready=may_be_ready
        )
    )
    ports = {
        name: kernel.moved_ports.get(before[name], before[name]) for name in kernel_ports.NAMES
    }
    connection = {**connection, **ports}
    request = {
        "op": "become_new",
        "environment": spec.env,
        "cwd": spec.cwd,
        "umask": spec.umask,
        "connection_file": connection_file,
        "moved_ports": {str(before): now for before, now in kernel.moved_ports.items()},
        "seed_anew": [] if recipes.seeds(cells) else _GENERATORS,
        "key": _text(connection["key"]),
    }
    try:
        reply = asyncio.run(_ask(connection, former.secrets.get("key", ""), request))
        if reply.get("status") != "ok":
            raise KernelError(
                f"its agent did not make a new kernel of the copy: {reply.get('evalue', 'it did not answer')}"
            )
    except BaseException:
        client.send(calls.kill(spec.kernel_id))
        raise
    return Started(kernel, connection)


async def _ask(connection: dict[str, Any], key: str, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request, signed with the key of the template's kernel, to its copy; the reply is signed with the new kernel's."""
    client = AsyncKernelClient()
    client.load_connection_info(cast("KernelConnectionInfo", {**connection, "key": key.encode()}))
    try:
        return await answer(
            client, AGENT_REQUEST, request, _ANSWER_SECONDS, reply_key=request["key"].encode()
        )
    finally:
        client.stop_channels()
        client.context.destroy(linger=0)


def _is_of_here(template: Template | None, client: Client) -> bool:
    """Return whether the template was built on this machine, and this machine has changed since, not only its free memory."""
    if template is None or template.cache is None or template.cache.host_name != platform.node():
        return False
    try:
        return bool(client.send(calls.changes(template.cache.snapshot_id)).obstacles)
    except GpuCkptError:
        return False


def _text(key: bytes | str) -> str:
    return key.decode() if isinstance(key, bytes) else key
